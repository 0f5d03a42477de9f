import { join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { Volume, VolumeName, VolumeRef } from '#core/model.ts';
import { errno, notFound, storeFailure } from './errors.ts';
import { lstatIfThere } from './files.ts';
import type { InFlight } from './in-flight.ts';
import type { Layout } from './layout.ts';
import type { Meta, MetaRead } from './meta.ts';
import { isMoving, readNamedMeta, volumeOf } from './meta.ts';
import type { Place } from './place.ts';
import { createReserve, type Reserve } from './reserve.ts';
import { settle } from './settle.ts';
import type { Left } from './tree.ts';

/** What the verbs of one open store share. */
export interface Parts {
  readonly place: Place;
  readonly layout: Layout;
  readonly clock: Clock;
  readonly reserve: Reserve;
  dataPath(name: string): string;
  read(name: VolumeName): Promise<MetaRead>;
  volume(meta: Meta): Volume;
  /** Holds the names and a place, checks the root, and turns whatever is thrown into a StowageError. */
  during<T>(
    doing: string,
    names: readonly string[],
    scope: Scope,
    work: () => Promise<T>,
    length?: keyof InFlight,
  ): Promise<T>;
  /** As `during`, for what gets a volume out of the way if it is here. May repeat the work: a full store gives up reserve for it. */
  emptying(doing: string, ref: VolumeRef, scope: Scope, work: (meta: Meta) => Promise<void>): Promise<void>;
  /** The record of that very volume, after finishing what was half done with it; undefined when it is not here. */
  find(ref: VolumeRef): Promise<Meta | undefined>;
  /** As `find`, but absence is an error. */
  held(ref: VolumeRef): Promise<Meta>;
  /** Something failed half-way since the last full sweep, or there was none yet. */
  unsettled: boolean;
  /** What the last `reclaim` had to leave in `deleting/`. */
  undeletable: readonly Left[];
}

export function createParts(place: Place, layout: Layout, clock: Clock): Parts {
  const locks = createKeyedLock();
  const read = (name: VolumeName): Promise<MetaRead> =>
    readNamedMeta(place.metaPath(name), name, place.context.instance);

  async function explained(cause: unknown, doing: string, scope: Scope): Promise<StowageError> {
    if (cause instanceof StowageError) return cause;
    if (scope.signal.aborted) return stowageError(scope.signal.reason);
    // The whole store being gone explains more than the one file that was missed.
    const larger = errno(cause) === 'ENOENT' ? await place.verify().then(() => undefined, stowageError) : undefined;
    return larger ?? storeFailure(cause, `${doing} in store ${place.store}`, place.root);
  }

  async function find(ref: VolumeRef): Promise<Meta | undefined> {
    const found = await read(ref.name);
    if (found.state === 'absent') return undefined;
    if (found.state !== 'ok') {
      if (found.state === 'torn' && (await lstatIfThere(parts.dataPath(ref.name))) === undefined) return undefined;
      throw found.error;
    }
    if (found.meta.id !== ref.id) return undefined;
    if (!isMoving(found.meta) || !(await settle(parts, found.meta))) return found.meta;
    const { movingTo } = found.meta;
    return movingTo === undefined ? undefined : find({ id: ref.id, name: movingTo });
  }

  const parts: Parts = {
    ...{ place, layout, clock, read, find, reserve: createReserve(place) },
    unsettled: true,
    undeletable: [],
    dataPath: (name) => join(place.root, `${name}${layout.suffix}`),
    volume: (meta) => volumeOf(meta, place.store),
    during: async (doing, names, scope, work, length = 'short') => {
      try {
        scope.signal.throwIfAborted();
        using _held = await locks.hold(names, scope.signal);
        using _place = await place.inFlight[length].take(scope.signal);
        await place.verify();
        return await work();
      } catch (cause) {
        // A refusal changed nothing; anything else may have stopped half-way.
        if (!(cause instanceof StowageError)) parts.unsettled = true;
        throw await explained(cause, doing, scope);
      }
    },
    emptying: (doing, ref, scope, work) =>
      parts.during(doing, [ref.name, ref.id], scope, () =>
        parts.reserve.backing(async () => {
          const meta = await find(ref);
          if (meta !== undefined) await work(meta);
        }),
      ),
    held: async (ref) => {
      const meta = await find(ref);
      if (meta === undefined) throw notFound(ref.name, place.store);
      return meta;
    },
  };
  return parts;
}
