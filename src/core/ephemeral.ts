import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { Deletions } from './deletion.ts';
import { errorCodes, StowageError, stowageError } from './errors.ts';
import { createFairPass, type FairPass } from './fair-pass.ts';
import { ownLabel } from './labels.ts';
import type { StoreName, Volume } from './model.ts';
import type { Mounts, PublishOptions } from './mounts.ts';
import { nameFor } from './names.ts';
import type { Call, Operations } from './operations.ts';
import { isShared } from './placement.ts';
import type { Records } from './ports.ts';
import type { Stores, StoreView } from './stores.ts';
import { requestDiffers } from './volume-errors.ts';
import type { Volumes } from './volumes.ts';

/**
 * Volumes that live as long as one target of theirs: made when it is published, destroyed when it is not any more. Each is
 * on a list before it is made and until it is destroyed, so that whatever comes between, it does not stay.
 */
export interface Ephemerals {
  /** The same key gives the same volume, on whichever store and as large as it is by now. Asked for otherwise than before: 'exists'. */
  publish(key: string, want: EphemeralVolumeSpec, target: string, how: PublishOptions, call: Call): Promise<void>;
  /** False: there is none of that key. The volume is destroyed soon after, as soon as its store answers. */
  unpublish(key: string, target: string, call: Call): Promise<boolean>;
  /** Undefined: there is none of that key, or it is not made yet. */
  volume(key: string): Volume | undefined;
  /** Destroys what is to be, and what nobody came for after it was made. */
  reconcile(scope: Scope): Promise<void>;
}

export interface EphemeralVolumeSpec {
  /** Where it is made, if it is not there yet. */
  readonly store: StoreName;
  /** Undefined: none was named. */
  readonly bytes: bigint | undefined;
  readonly enforce: boolean;
}

interface EphemeralRecord {
  readonly key: string;
  readonly store: StoreName;
  readonly target: string;
  /** It is to be destroyed. */
  readonly over: boolean;
  /** As it was asked for, whatever became of it since. Undefined: by a version that did not note it. */
  readonly asked?: RequestedSize | undefined;
}

interface RequestedSize {
  readonly bytes: string | null;
  readonly enforce: boolean;
}

export interface EphemeralParts {
  readonly records: Records;
  readonly stores: Pick<Stores, 'list' | 'view' | 'use'>;
  readonly volumes: Volumes;
  readonly deletions: Deletions;
  readonly mounts: Mounts;
  readonly operations: Operations;
  readonly clock: Clock;
  readonly log: Log;
}

const settingKey = 'ephemeral.volumes';
/** An unpublish does not wait longer for a store that is gone. */
const destroyMs = 3_000;
/** For one of them. */
const settleMs = 60_000;
/** One after the other on each store: a silent one is asked once. */
const inParallel = 1;
/** Who takes longer to fail is not worth asking for the next one. */
const quickMs = 1_000;
/** After a start of the machine those who use it come back first. */
const unclaimedMs = 600_000;
/** What was asked of a server before it fell silent, it may still do after it has answered something else. */
const lateMs = 30_000;
const unending = new AbortController().signal;

export function createEphemerals(parts: EphemeralParts): Ephemerals {
  const { records, stores, volumes, deletions, mounts, operations, clock, log } = parts;
  const listed = (): readonly EphemeralRecord[] => JSON.parse(records.settings.get(settingKey) ?? '[]');
  const list = (key: string): EphemeralRecord | undefined => listed().find((one) => one.key === key);
  const note = (one: EphemeralRecord): void => set([...listed().filter(({ key }) => key !== one.key), one]);
  const forget = (key: string): void => set(listed().filter((one) => one.key !== key));
  const set = (all: readonly EphemeralRecord[]): void => records.settings.set(settingKey, JSON.stringify(all));
  /** By this process's clock: since when it was seen without a mount. */
  const unclaimed = new Map<string, number>();
  /** The same: since when its store says that it has none. */
  const absent = new Map<string, number>();

  const requestId = (key: string): string => `ephemeral:${key}`;
  const volumeOf = ({ key, store }: EphemeralRecord): Volume | undefined =>
    records.volumes.byRequest(store, requestId(key));
  const keyOf = (key: string): string => `ephemeral ${key}`;

  /** The answer to its making may have been lost: then the store has it, and our records do not. Fails unless it says. */
  async function madeUnheard({ key, store }: EphemeralRecord, scope: Scope): Promise<Volume | undefined> {
    const made = (await stores.use(store, (open) => open.get(nameFor(key), scope)))?.volume;
    if (made?.requestId !== requestId(key)) return undefined;
    records.volumes.put(made);
    return made;
  }

  async function create(
    key: string,
    store: StoreName,
    { bytes, enforce }: EphemeralVolumeSpec,
    call: Call,
  ): Promise<Volume> {
    const ownLabels = { [ownLabel('ephemeral')]: 'true' };
    const spec = { store, name: nameFor(key), bytes, enforce, access: undefined, labels: {}, ownLabels };
    return await volumes.create(spec, { ...call, requestId: requestId(key) });
  }

  async function destroy(one: EphemeralRecord, scope: Scope): Promise<void> {
    using _ = await operations.lock([keyOf(one.key)], scope.signal);
    if (list(one.key)?.over !== true) return;
    const volume = volumeOf(one) ?? (await madeUnheard(one, scope));
    if (volume === undefined && !isAbsentForGood(one.key)) return;
    try {
      if (volume !== undefined)
        await deletions.delete(
          volume.id,
          undefined,
          { ...scope, requestId: `${requestId(one.key)}:end` },
          { destroy: true },
        );
    } catch (thrown) {
      if (stowageError(thrown).reason !== 'volume-unknown') throw thrown;
    }
    absent.delete(one.key);
    forget(one.key);
  }

  function isAbsentForGood(key: string): boolean {
    const since = absent.get(key) ?? clock.elapsed();
    absent.set(key, since);
    return clock.elapsed() - since >= lateMs;
  }

  /** False: it could not be. */
  async function destroyOrComplain(one: EphemeralRecord, scope: Scope): Promise<boolean> {
    try {
      await destroy(one, scope);
      return true;
    } catch (thrown) {
      const { message, code } = stowageError(thrown);
      const level = errorCodes[code].retry ? 'info' : 'warn';
      log[level]('a volume that is no longer needed could not be destroyed; it is tried again', { why: message });
      return false;
    }
  }

  /** Each store by itself, so that a silent one delays no other. */
  const passes = new Map<StoreName, FairPass<string>>();

  async function settleOn(store: StoreName, due: readonly EphemeralRecord[], scope: Scope): Promise<void> {
    const pass = passes.get(store) ?? createFairPass(clock, { inParallel, itemMs: settleMs });
    passes.set(store, pass);
    const byKey = new Map(due.map((one) => [one.key, one]));
    const silent = new Error(`store ${store} is silent`);
    const passing = pass(byKey.keys(), scope, async (key, own) => {
      const one = byKey.get(key);
      if (one === undefined) return;
      const began = clock.elapsed();
      const isDone = await destroyOrComplain(one, own);
      // Nobody waits for a store that is silent once for each of them. The next pass begins with the others.
      if (!isDone && clock.elapsed() - began > quickMs) throw silent;
    });
    await passing.catch((thrown: unknown) => {
      if (thrown !== silent) throw thrown;
    });
  }

  /** Somewhere, if not at its target: that may be given by way of a link, and mounts are on record where it leads. */
  function isMounted(one: EphemeralRecord): boolean {
    const volume = volumeOf(one);
    return (
      records.mounts.at(one.target) !== undefined || (volume !== undefined && records.mounts.of(volume.id).length > 0)
    );
  }

  function lookFor(one: EphemeralRecord): void {
    if (one.over || isMounted(one)) {
      unclaimed.delete(one.key);
      return;
    }
    const since = unclaimed.get(one.key) ?? clock.elapsed();
    unclaimed.set(one.key, since);
    if (clock.elapsed() - since < unclaimedMs) return;
    unclaimed.delete(one.key);
    note({ ...one, over: true });
  }

  return {
    volume: (key) => {
      const one = list(key);
      return one && volumeOf(one);
    },
    publish: async (key, want, target, how, call) => {
      using _ = await operations.lock([keyOf(key)], call.signal);
      const before = list(key);
      const known = before && volumeOf(before);
      const store = before?.store ?? want.store;
      const asked = { bytes: want.bytes === undefined ? null : String(want.bytes), enforce: want.enforce };
      // What is there already is not taken from who has it.
      if (known === undefined) refuseInline(stores.view(store));
      else if (!isSame(before?.asked ?? asked, asked)) throw requestDiffers(known);
      absent.delete(key);
      note({ key, store, target, over: false, asked });
      // As it is: what its store would give a new one by now is not the business of who says once more what they have.
      const volume = (known && (await volumes.complete(known, call))?.volume) ?? (await create(key, store, want, call));
      await mounts.publish(volume.id, target, how, call);
    },
    unpublish: async (key, target, call) => {
      const one = list(key);
      if (one === undefined) return false;
      note({ ...one, over: true });
      // Forced: what it holds is destroyed next, and to write it first would make its pod wait for a server that is silent.
      await mounts.unpublish(target, volumeOf(one)?.id, call, { force: true, claimTarget: true });
      // It goes on after that: nobody waits for a store that is silent.
      await endsWithin(destroyOrComplain(one, { signal: unending, log }), destroyMs, clock);
      return true;
    },
    reconcile: async (scope) => {
      for (const one of listed()) lookFor(one);
      // Of a store that was taken away they stay on the list: it may come back.
      const asked = new Set(stores.list().map(({ config }) => config.name));
      const due = listed().filter(({ over, store }) => over && asked.has(store));
      await Promise.all(
        Array.from(
          Map.groupBy(due, ({ store }) => store),
          ([store, those]) => settleOn(store, those, scope),
        ),
      );
    },
  };
}

const isSame = (one: RequestedSize, other: RequestedSize): boolean =>
  one.bytes === other.bytes && one.enforce === other.enforce;

/** No class, quota or right stands between whoever may make a pod and the store, so sharing one is not reason enough. */
function refuseInline({ config, placement }: StoreView): void {
  if (config.policy.inline ?? !isShared(placement)) return;
  throw new StowageError(`store '${config.name}' does not allow inline volumes`, {
    code: 'denied',
    reason: 'inline-not-allowed',
    action:
      "Use a claim (for one that lives with the pod: ephemeral.volumeClaimTemplate), or ask the administrator to allow them by the store's option inline: true",
  });
}
