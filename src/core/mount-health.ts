import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import { repairedAt } from './mended-mounts.ts';
import type { Source, StoreName, VolumeId } from './model.ts';
import type { LiveMount, Mounts } from './mounts.ts';
import type { Client, Records } from './ports.ts';
import type { StoreAnswers } from './store-answers.ts';
import { notAnswering } from './store-errors.ts';
import type { Stores } from './stores.ts';
import { toldToUser } from './telling.ts';

/**
 * ok: as it should be. unmounted: the kernel does not show it any more. dead: nobody serves it. client-failing: what serves it does
 * not answer, or dies again and again. store-silent: its store cannot be used from this machine.
 */
export type MountState = 'ok' | 'unmounted' | 'dead' | 'client-failing' | 'store-silent';

export interface MountHealth {
  readonly state: MountState;
  /** What is wrong, for whoever uses the volume. */
  readonly detail: string | undefined;
  /** It was mounted anew then, since nobody served it any more: who had it before sees errors until it is started again. */
  readonly repairedAt: number | undefined;
}

export type WatchedMount = LiveMount & { readonly health: MountHealth };

export interface MountHealthParts {
  readonly records: Records;
  readonly mounts: Pick<Mounts, 'list' | 'of' | 'isDead'>;
  readonly clients: { readonly [K in Source['kind']]: Client<K> };
  readonly stores: () => Pick<Stores, 'view'>;
  readonly answers: Pick<StoreAnswers, 'silent' | 'refusal'>;
  readonly clock: Clock;
}

/** In all: of what has not been found out by then it is said that its client does not answer. */
const lookMs = 5_000;
const atOnce = 8;

const words = {
  unmounted: 'the volume is not mounted at its place any more: somebody unmounted it there',
  dead: 'nothing serves the mount at the moment; it is being made anew',
  mute: 'the client that serves the mount does not answer',
} as const;

/** Of one volume, or of all. */
export type LookAtMounts = (scope: Scope, volume?: VolumeId) => Promise<readonly WatchedMount[]>;

/** How every mount of this machine is. Nothing is looked for in the mounts themselves: whoever does may wait for ever. */
export function createMountHealth(parts: MountHealthParts): LookAtMounts {
  const { records, mounts, clients, stores, answers, clock } = parts;

  async function deaths(ids: Iterable<VolumeId>, scope: Scope): Promise<ReadonlyMap<VolumeId, string>> {
    const found = new Map<VolumeId, string>();
    await eachBounded(ids, atOnce, async (id) => {
      try {
        if (await mounts.isDead(id, scope)) found.set(id, words.dead);
      } catch {
        found.set(id, words.mute);
      }
    });
    return found;
  }

  /** What is wrong with whatever serves such mounts; for each kind of them once. */
  async function failures(all: readonly LiveMount[], scope: Scope): Promise<(source: Source) => string | undefined> {
    const { trouble } = clients.nfs;
    const nfs = all.flatMap(({ source }) => (source.kind === 'nfs' ? [source] : []));
    const byKey = new Map(nfs.map((source) => [keyOf(source), source]));
    // At once: keepers that do not answer each take their time.
    const asked = Array.from(byKey, async ([key, source]) => {
      return [key, await trouble?.(source, scope).catch(() => words.mute)] as const;
    });
    const kinds = new Map(await Promise.all(asked));
    return (source) => (source.kind === 'nfs' ? kinds.get(keyOf(source)) : undefined);
  }

  /** Of stores that are configured: of others nothing is known. */
  async function silences(names: readonly StoreName[], scope: Scope): Promise<ReadonlyMap<string, string>> {
    const found = new Map<string, string>();
    const open: StoreName[] = [];
    for (const name of names) {
      const view = viewOf(name);
      if (view?.problem !== undefined)
        found.set(name, `store '${name}' is not open: ${toldToUser(view.problem, '').message}`);
      else if (view !== undefined) open.push(name);
    }
    for (const name of await answers.silent(open, scope))
      found.set(name, notAnswering(name, answers.refusal(name as StoreName)).message);
    return found;
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
    using limit = clock.deadline(lookMs, scope.signal);
    const own: Scope = { ...scope, signal: limit.signal };
    const all = volume === undefined ? await mounts.list(scope) : await mounts.of(volume, scope);
    const [dead, failing, silent] = await Promise.all([
      deaths(new Set(all.map(({ volumeId }) => volumeId)), own),
      failures(all, own),
      silences([...new Set(all.flatMap((mount) => storeOf(mount) ?? []))], scope),
    ]);
    scope.signal.throwIfAborted();
    const stateOf = (mount: LiveMount): Pick<MountHealth, 'state' | 'detail'> => {
      const death = dead.get(mount.volumeId);
      // A store that does not answer is the reason for much else, but not for these.
      if (death === words.dead) return { state: 'dead', detail: death };
      if (!mount.mounted) return { state: 'unmounted', detail: words.unmounted };
      const failure = death ?? failing(mount.source);
      if (failure !== undefined) return { state: 'client-failing', detail: failure };
      const silence = silent.get(storeOf(mount) ?? '');
      return silence === undefined ? { state: 'ok', detail: undefined } : { state: 'store-silent', detail: silence };
    };
    return all.map((mount) => ({
      ...mount,
      health: { ...stateOf(mount), repairedAt: repairedAt(records, mount) },
    }));
  };
}

const keyOf = ({ way: { network, sourcePorts } }: Extract<Source, { kind: 'nfs' }>): string =>
  JSON.stringify([network, sourcePorts]);
