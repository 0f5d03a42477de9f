import { randomBytes } from 'node:crypto';
import { stat } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { SourceOf, VolumeId } from '#core/model.ts';
import { requireMounting } from '#core/mount-errors.ts';
import type { Client, Mounter, StageOptions, StagingTarget } from '#core/ports.ts';
import { ownSource } from '#core/volume-staging.ts';
import { fuseType, mountFuse, setReadAhead } from '../data-path/fuse-mount.ts';
import type { Keepers } from '../data-path/keepers.ts';
import { specOf } from '../data-path/nfs-mount-spec.ts';
import type { MountTable } from '../mounter/mountinfo.ts';
import type { PathAccess } from '../mounter/path-access.ts';
import { locatedOwn } from '../mounter/paths.ts';
import type { Run } from '../mounter/run-program.ts';
import { noAnswer, unenforced } from './nfs-errors.ts';
import { mountByHost } from './nfs-host.ts';
import { nfsMountsOf } from './nfs-mounts.ts';
import { createServedMounts, kindOf, ourMount } from './nfs-served-mounts.ts';
import { nfsSources } from './nfs-sharing.ts';
import { makeStage, removeStage } from './staging.ts';

export interface NfsClientParts {
  readonly mounter: Mounter;
  readonly run: Run;
  readonly clock: Clock;
  readonly accessPath: PathAccess;
  readonly keepers: Keepers;
  readonly readTable: () => Promise<MountTable>;
  /** Waits for programs that a killed Stowage left running. */
  readonly settled?: (scope: Scope) => Promise<void>;
  /** This Stowage's instance. */
  readonly instance: string;
}

type NfsSource = SourceOf<'nfs'>;

const undoMs = 10_000;
const initMs = 300;
const unending = new AbortController().signal;

/** Mounts a directory of an NFS server with our own data path, which needs only /dev/fuse of the host. */
export function createNfsClient(parts: NfsClientParts): Client<'nfs'> {
  const { mounter, clock, keepers, readTable } = parts;
  const servedMounts = createServedMounts({ keepers, clock, readTable });

  /** Removes a mount that is in the mount table but that no data path serves, to make room for a new one. */
  async function stagedAlready(source: NfsSource, volumeId: VolumeId, place: string, scope: Scope): Promise<boolean> {
    const there = (await readTable()).at(place);
    if (there === undefined) return false;
    const ours = ourMount(there, place, volumeId, source);
    if (await servedMounts.isServed(ours, scope)) return true;
    scope.log.warn('replacing a mount that no data path serves', { at: place });
    // Aborts pending requests, since no process will answer them.
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
      await parts.accessPath({ path: place, table: await readTable(), signal: scope.signal }, () => stat(place));
    } catch (cause) {
      scope.signal.throwIfAborted();
      throw cause instanceof StowageError ? cause : noAnswer(cause);
    }
  }

  return {
    kind: 'nfs',
    nodeLocal: false,
    outlivesMount: false,
    sourceFixedWhileStaged: false,
    ...nfsSources,
    isServedElsewhere: servedMounts.isServedElsewhere,
    validate: refuse,
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
        await servedMounts
          .waitForEnd(ourMount(there, place, volumeId, source), scope)
          .catch((cause: unknown) =>
            scope.log.info('could not determine whether a mount has ended', { at: place, why: String(cause) }),
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
        await servedMounts.refuseUnwritten(ourMount(there, place, volumeId, source), scope);
    },
    findDeadMounts: servedMounts.findDeadMounts,
    daemon: {
      // The key includes the client: mounts of the system's client have no process of ours, so they don't share its state.
      key: ({ way: { client, network, sourcePorts } }) => JSON.stringify([client, network, sourcePorts]),
      findProblem: async (source, _target, scope) =>
        source.way.client === 'host' ? undefined : await keepers.trouble(kindOf(source), scope.signal),
    },
  };
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
