import { randomBytes } from 'node:crypto';
import { stat } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { SourceOf, VolumeId } from '#core/model.ts';
import { requireMounting } from '#core/mount-errors.ts';
import type { Client, Mounter, StageOptions, StagingTarget } from '#core/ports.ts';
import { ownSource } from '#core/volume-staging.ts';
import { KeeperError } from '#keeper/protocol.ts';
import { fuseType, mountFuse, setReadAhead } from '../data-path/fuse-mount.ts';
import type { KeeperKind } from '../data-path/keeper-starter.ts';
import type { Keepers } from '../data-path/keepers.ts';
import { specOf } from '../data-path/nfs-mount-spec.ts';
import type { MountEntry, MountTable } from '../mounter/mountinfo.ts';
import type { PathAccess } from '../mounter/path-access.ts';
import { locatedOwn } from '../mounter/paths.ts';
import type { Run } from '../mounter/run-program.ts';
import { mountByHost } from './nfs-host.ts';
import { nfsMountsOf } from './nfs-mounts.ts';
import { nfsSources } from './nfs-sharing.ts';
import { makeStage, removeStage } from './staging.ts';

export interface NfsClientParts {
  readonly mounter: Mounter;
  readonly run: Run;
  readonly clock: Clock;
  readonly look: PathAccess;
  readonly keepers: Keepers;
  readonly readTable: () => Promise<MountTable>;
  /** Waits for programs that a killed Stowage left running. */
  readonly settled?: (scope: Scope) => Promise<void>;
  /** This Stowage's instance. */
  readonly instance: string;
}

type NfsSource = SourceOf<'nfs'>;

interface OurMount {
  readonly id: string;
  readonly kind: KeeperKind;
}

/** How long the kernel gets to end an unmounted file system; after that it is still in use elsewhere. */
const endingMs = 2_000;
/** Usually it takes a millisecond. */
const [firstLookMs, longestLookMs] = [1, 20];
const undoMs = 10_000;
const initMs = 300;
/** For flushing dirty data to the server; shorter than the deadline of an unmount. */
const flushMs = 4_000;
/** For the keeper's answer after that. */
const answerMs = 1_500;
const unending = new AbortController().signal;

/** Mounts a directory of an NFS server with our own data path, which needs only /dev/fuse of the host. */
export function createNfsClient(parts: NfsClientParts): Client<'nfs'> {
  const { mounter, clock, keepers, readTable } = parts;

  const isServed = async ({ id, kind }: OurMount, scope: Scope): Promise<boolean> =>
    (await keepers.holding(id, kind, scope.signal, async ({ isStuck }) => !isStuck)) ?? false;

  /** A mount that is in the mount table but that nobody serves is removed to make room for a new one. */
  async function stagedAlready(source: NfsSource, volumeId: VolumeId, place: string, scope: Scope): Promise<boolean> {
    const there = (await readTable()).at(place);
    if (there === undefined) return false;
    const ours = ourMount(there, place, volumeId, source);
    if (await isServed(ours, scope)) return true;
    scope.log.warn('a mount that nobody serves is replaced', { at: place });
    // Aborts pending requests, since nobody will answer them.
    await mounter.detach(place, scope, { abort: true });
    const { id, kind } = ours;
    await keepers.holding(id, kind, scope.signal, (keeper) => keeper.drop(id, scope.signal));
    return false;
  }

  async function stage(
    source: NfsSource,
    { path, volumeId }: StagingTarget,
    scope: Scope,
    how: StageOptions | undefined,
  ): Promise<void> {
    const place = await makeStage(path, 'filesystem');
    if (await stagedAlready(source, volumeId, place, scope)) return;
    const spec = await specOf(source, parts.instance);
    // A new id each time: containers may still use an earlier mount of the volume, which stays served.
    const id = ownSource(volumeId, randomBytes(4).toString('hex'));
    await keepers.use(kindOf(source), scope.signal, async (keeper) => {
      await using mounted = await mountFuse(id, place, spec);
      try {
        await keeper.adopt(id, spec, mounted.fd, scope.signal);
        // If the mount may not be accessed, wait for INIT, after which the kernel resets what was set before.
        await (how?.skipServerCheck === true ? clock.sleep(initMs, scope.signal) : answers(place, scope));
        await setReadAhead(await readTable(), place, scope);
      } catch (cause) {
        using limit = clock.deadline(undoMs, unending);
        // Also aborts pending requests, above all our own stat.
        await mounter.detach(place, { ...scope, signal: limit.signal }, { abort: true }).catch(() => undefined);
        throw cause;
      }
    });
  }

  /** Checks that the new mount works. */
  async function answers(place: string, scope: Scope): Promise<void> {
    try {
      await parts.look({ path: place, table: await readTable(), signal: scope.signal }, () => stat(place));
    } catch (cause) {
      scope.signal.throwIfAborted();
      throw cause instanceof StowageError ? cause : noAnswer(cause);
    }
  }

  /** Never discard acknowledged writes on unmount. */
  async function refuseUnwritten({ id, kind }: OurMount, scope: Scope): Promise<void> {
    const files = await keepers.holding(id, kind, scope.signal, async (keeper) => {
      using limit = clock.deadline(flushMs + answerMs, scope.signal);
      return keeper.isStuck ? 0 : await keeper.flush(id, flushMs, limit.signal);
    });
    if (files !== undefined && files > 0) throw unwritten(files);
  }

  async function waitForEnd(ours: OurMount, scope: Scope): Promise<void> {
    const since = clock.elapsed();
    for (let pauseMs = firstLookMs; await isServed(ours, scope); pauseMs = Math.min(2 * pauseMs, longestLookMs)) {
      if (clock.elapsed() - since > endingMs) {
        scope.log.info('a volume that was unmounted here is still in use elsewhere, and is served on', {
          mount: ours.id,
        });
        return;
      }
      await clock.sleep(pauseMs, scope.signal);
    }
  }

  /** Whether the volume is still in use elsewhere on this node. Waits as long as a recent unmount may take to complete. */
  async function elsewhere(_source: NfsSource, { path, volumeId }: StagingTarget, scope: Scope): Promise<boolean> {
    const place = locatedOwn(path);
    const here = place === undefined ? undefined : (await readTable()).at(place)?.source;
    const since = clock.elapsed();
    for (let pauseMs = firstLookMs; ; pauseMs = Math.min(2 * pauseMs, longestLookMs)) {
      const all = await keepers.serving(ownSource(volumeId), scope.signal);
      if (all.every((id) => id === here)) return false;
      if (clock.elapsed() - since > endingMs) return true;
      await clock.sleep(pauseMs, scope.signal);
    }
  }

  return {
    kind: 'nfs',
    nodeLocal: false,
    outlivesMount: false,
    sourceFixedWhileStaged: false,
    ...nfsSources,
    elsewhere,
    refuse,
    stage: async (source, target, scope, how) => {
      requireMounting(mounter);
      refuse(source);
      if (source.way.client === 'host')
        await mountByHost(parts, source, await makeStage(target.path, 'filesystem'), scope);
      else await stage(source, target, scope, how);
    },
    unstage: async (source, { path, volumeId }, scope, how) => {
      requireMounting(mounter);
      const place = locatedOwn(path);
      if (place === undefined) return;
      const there = (await readTable()).at(place);
      if (how?.force === true) await mounter.detach(place, scope, { abort: true });
      else await mounter.unmount(place, scope);
      // The unmount succeeded, whatever the keeper reports.
      if (there?.type === fuseType)
        await waitForEnd(ourMount(there, place, volumeId, source), scope).catch((cause: unknown) =>
          scope.log.info('whether a mount has ended is not known', { at: place, why: String(cause) }),
        );
      await removeStage(place, scope);
    },
    mountsOf: async (source, target, scope) => {
      await parts.settled?.(scope);
      return nfsMountsOf(source, target.path, await readTable());
    },
    flush: async (source, { path, volumeId }, scope) => {
      const place = locatedOwn(path);
      const there = place === undefined ? undefined : (await readTable()).at(place);
      if (place !== undefined && there?.type === fuseType)
        await refuseUnwritten(ourMount(there, place, volumeId, source), scope);
    },
    daemon: {
      // The key includes the client: mounts of the system's client have no process of ours, so they don't share its state.
      key: ({ way: { client, network, sourcePorts } }) => JSON.stringify([client, network, sourcePorts]),
      trouble: async (source, _target, scope) =>
        source.way.client === 'host' ? undefined : await keepers.trouble(kindOf(source), scope.signal),
    },
    dead: async (staged, scope) => {
      const table = await readTable();
      const dead: string[] = [];
      for (const { source, target } of staged) {
        const { path, volumeId } = target;
        const place = locatedOwn(path);
        if (place === undefined || source.way.client === 'host') continue;
        const there = table.at(place);
        if (there === undefined || !(await isServed(ourMount(there, place, volumeId, source), scope))) dead.push(path);
      }
      return dead;
    },
  };
}

function kindOf({ way: { network, sourcePorts } }: NfsSource): KeeperKind {
  return { network, privilegedPorts: sourcePorts === 'privileged' };
}

function ourMount(there: MountEntry, place: string, volumeId: VolumeId, source: NfsSource): OurMount {
  if (there.type === fuseType && there.source.startsWith(ownSource(volumeId)))
    return { id: there.source, kind: kindOf(source) };
  throw new StowageError(`something else is mounted at ${place}: ${there.source} (${there.type})`, {
    code: 'conflict',
    reason: 'mount-occupied',
    action: `Unmount it: umount ${place}`,
  });
}

const refuse = ({ way: { client, quota, sourcePorts } }: NfsSource): void => {
  if (client === 'host' && quota !== undefined) throw unenforced();
  if (typeof sourcePorts !== 'number') return;
  throw new StowageError('volumes of a store with a single source port cannot be mounted: Stowage itself is using it', {
    code: 'unsupported',
    reason: 'source-port-taken',
    action: "Have the store's administrator use sourceport=privileged.",
  });
};

function unenforced(): StowageError {
  return new StowageError("the volume is to be held to its size, and the system's NFS client cannot do that", {
    code: 'unsupported',
    reason: 'enforcement-unsupported',
    action: "Have the store's administrator leave out client=host.",
  });
}

function unwritten(files: number): StowageError {
  return new StowageError(
    `${files === 1 ? 'a file has' : `${files} files have`} data that the server does not have yet, and it does not take them`,
    {
      code: 'busy',
      reason: 'data-unwritten',
      action: 'Wait until the server answers again, and repeat. To give the data up: stowage unmount PATH --force',
    },
  );
}

function noAnswer(cause: unknown): StowageError {
  const why = cause instanceof KeeperError || cause instanceof Error ? cause.message : String(cause);
  return new StowageError(`the volume was mounted, and its server does not answer for it: ${why}`, {
    code: 'unavailable',
    reason: 'mount-unanswered',
    action: 'See what is wrong with the way to the server: stowage store check STORE',
    cause,
  });
}
