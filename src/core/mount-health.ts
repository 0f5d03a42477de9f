import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import type { Clients } from './clients.ts';
import { redactForUser } from './error-disclosure.ts';
import { stowageError } from './errors.ts';
import type { LiveMount, Mount, StoreName, VolumeId } from './model.ts';
import type { MountQueries } from './mount-queries.ts';
import type { Records } from './ports.ts';
import { repairedAt } from './repaired-mounts.ts';
import { notAnswering } from './store-errors.ts';
import type { StoreLiveness } from './store-liveness.ts';
import type { Stores } from './stores.ts';

/**
 * ok: healthy. unmounted: not in the kernel's mount table any more. dead: no process serves the mount. client-failing: the process that
 * serves it does not answer, or dies repeatedly. store-silent: the store is unreachable from this machine.
 */
export type MountState = 'ok' | 'unmounted' | 'dead' | 'client-failing' | 'store-silent';

export interface MountHealth {
  readonly state: MountState;
  /** The problem, for users of the volume. */
  readonly detail: string | undefined;
  /** When the dead mount was remounted. Programs that used it before that see errors until they are restarted. */
  readonly repairedAt: number | undefined;
}

export type MountWithHealth = LiveMount & { readonly health: MountHealth };

interface Daemon {
  /** Unique among the processes of all clients. */
  readonly key: string;
  trouble(scope: Scope): Promise<string | undefined>;
}

export interface MountHealthParts {
  readonly records: Records;
  readonly mounts: Pick<MountQueries, 'list' | 'ofVolume' | 'isDead'>;
  readonly clients: Clients;
  /** Where a volume is staged. */
  readonly stagingPathOf: (id: VolumeId) => string;
  readonly stores: () => Pick<Stores, 'view'>;
  readonly liveness: Pick<StoreLiveness, 'findSilent' | 'denialOf'>;
  readonly clock: Clock;
}

/** The deadline of the whole check. Mounts whose state is unknown by then are reported as client-failing. */
const checkTimeoutMs = 5_000;
const maxConcurrentChecks = 8;

const problemTexts = {
  unmounted: 'the volume is not mounted at its target any more: somebody unmounted it',
  dead: 'no process serves the mount; it is being remounted',
  unresponsive: 'the client that serves the mount does not answer',
} as const;

/** Checks the mounts of one volume, or of all volumes. */
export type CheckMountHealth = (scope: Scope, volume?: VolumeId) => Promise<readonly MountWithHealth[]>;

/** Checks the health of this machine's mounts. Never accesses the mounts themselves, since that can hang forever. */
export function createMountHealth(parts: MountHealthParts): CheckMountHealth {
  const { records, mounts, clients, stagingPathOf, stores, liveness, clock } = parts;

  async function findDeadMounts(ids: Iterable<VolumeId>, scope: Scope): Promise<ReadonlyMap<VolumeId, string>> {
    const problems = new Map<VolumeId, string>();
    await eachBounded(ids, maxConcurrentChecks, async (id) => {
      try {
        if (await mounts.isDead(id, scope)) problems.set(id, problemTexts.dead);
      } catch {
        problems.set(id, problemTexts.unresponsive);
      }
    });
    return problems;
  }

  /** Our process that serves the mount. Undefined: there is none. */
  function daemonOf({ source, volumeId }: Mount): Daemon | undefined {
    const client = clients.find(source);
    const daemon = client?.daemon;
    if (client === undefined || daemon === undefined) return undefined;
    const target = { volumeId, path: stagingPathOf(volumeId) };
    const key = JSON.stringify([client.kind, daemon.key(source, target)]);
    return { key, trouble: (scope) => daemon.findProblem(source, target, scope) };
  }

  /** The problems of the processes that serve the mounts. Asks each process once. */
  async function findClientProblems(
    all: readonly LiveMount[],
    scope: Scope,
  ): Promise<(mount: Mount) => string | undefined> {
    const served = all.flatMap((mount) => daemonOf(mount) ?? []);
    const byKey = new Map(served.map((daemon) => [daemon.key, daemon]));
    // Ask all processes in parallel: each one that does not answer takes its whole deadline.
    const answers = Array.from(byKey, async ([key, { trouble }]) => {
      return [key, await trouble(scope).catch(() => problemTexts.unresponsive)] as const;
    });
    const troubles = new Map(await Promise.all(answers));
    return (mount) => {
      const daemon = daemonOf(mount);
      return daemon && troubles.get(daemon.key);
    };
  }

  /** The problems of stores that cannot be used. Omits stores that are not configured. */
  async function findStoreProblems(names: readonly StoreName[], scope: Scope): Promise<ReadonlyMap<string, string>> {
    const problems = new Map<string, string>();
    const open: StoreName[] = [];
    for (const name of names) {
      const view = viewOf(name);
      if (view?.problem !== undefined)
        problems.set(name, `store '${name}' is not open: ${redactForUser(view.problem, '').message}`);
      else if (view !== undefined) open.push(name);
    }
    for (const name of await liveness.findSilent(open, scope))
      problems.set(name, notAnswering(name, liveness.denialOf(name as StoreName)).message);
    return problems;
  }

  function viewOf(name: StoreName): ReturnType<Stores['view']> | undefined {
    try {
      return stores().view(name);
    } catch (thrown) {
      if (stowageError(thrown).code === 'not-found') return undefined;
      throw thrown;
    }
  }

  const storeOf = ({ volumeId }: LiveMount): StoreName | undefined => records.volumes.byId(volumeId)?.store;

  return async (scope, volume) => {
    using limit = clock.deadline(checkTimeoutMs, scope.signal);
    const limitedScope: Scope = { ...scope, signal: limit.signal };
    const all = volume === undefined ? await mounts.list(scope) : await mounts.ofVolume(volume, scope);
    const [dead, failing, silent] = await Promise.all([
      findDeadMounts(new Set(all.map(({ volumeId }) => volumeId)), limitedScope),
      findClientProblems(all, limitedScope),
      findStoreProblems([...new Set(all.flatMap((mount) => storeOf(mount) ?? []))], scope),
    ]);
    scope.signal.throwIfAborted();
    const stateOf = (mount: LiveMount): Pick<MountHealth, 'state' | 'detail'> => {
      const deadProblem = dead.get(mount.volumeId);
      // A store that does not answer can cause client failures, but not these two states.
      if (deadProblem === problemTexts.dead) return { state: 'dead', detail: deadProblem };
      if (!mount.mounted) return { state: 'unmounted', detail: problemTexts.unmounted };
      const clientProblem = deadProblem ?? failing(mount);
      if (clientProblem !== undefined) return { state: 'client-failing', detail: clientProblem };
      const storeProblem = silent.get(storeOf(mount) ?? '');
      return storeProblem === undefined
        ? { state: 'ok', detail: undefined }
        : { state: 'store-silent', detail: storeProblem };
    };
    return all.map((mount) => ({
      ...mount,
      health: { ...stateOf(mount), repairedAt: repairedAt(records, mount) },
    }));
  };
}
