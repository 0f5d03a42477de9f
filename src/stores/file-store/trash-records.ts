import type { Scope } from '#base/log.ts';
import type { VolumeId } from '#core/model.ts';
import { type Meta, type MetaRead, readMeta } from './meta.ts';
import type { VerbContext } from './verb-context.ts';

/** Records that do not change are read again after this time: another host may have restored and deleted the volume. */
const rereadAfterMs = 3_600_000;

/** A record of an entry, and when it was read. */
interface CachedRecord {
  readonly meta: Meta;
  readonly readAt: number;
}

/** The records of the volumes in the trash, as this process last read them. */
export interface TrashRecords {
  path(id: VolumeId): string;
  read(id: VolumeId): Promise<MetaRead>;
  /** Remembers what was read, and returns it. Undefined: there is no readable record. */
  remember(id: VolumeId, found: MetaRead): Meta | undefined;
  forget(id: VolumeId): void;
  keepOnly(present: ReadonlySet<VolumeId>): void;
  /** The remembered record, or the one in the store. Undefined: the entry is being moved into or out of the trash, or is unreadable. */
  readCached(id: VolumeId, scope: Scope): Promise<Meta | undefined>;
}

export function createTrashRecords(ctx: VerbContext): TrashRecords {
  const { storeRoot, clock } = ctx;
  const remembered = new Map<VolumeId, CachedRecord>();
  const reported = new Set<VolumeId>();
  const path = (id: VolumeId): string => storeRoot.ownPath('trash', id, 'meta');
  const read = (id: VolumeId): Promise<MetaRead> => readMeta(storeRoot.files, path(id), storeRoot.context.instance);

  function remember(id: VolumeId, found: MetaRead): Meta | undefined {
    if (found.state === 'ok') remembered.set(id, { meta: found.meta, readAt: clock.elapsed() });
    else remembered.delete(id);
    return found.state === 'ok' ? found.meta : undefined;
  }

  return {
    path,
    read,
    remember,
    forget: (id) => void remembered.delete(id),
    keepOnly: (present) => {
      for (const id of remembered.keys()) if (!present.has(id)) remembered.delete(id);
    },
    readCached: async (id, scope) => {
      const known = remembered.get(id);
      if (known !== undefined && clock.elapsed() - known.readAt < rereadAfterMs) return known.meta;
      const found = await runTrashScan(ctx, scope, () => read(id));
      const isUnreadable = found.state === 'unreadable' || (found.state === 'ok' && found.meta.expiry === 'unreadable');
      if (isUnreadable && !reported.has(id)) {
        const why = found.state === 'unreadable' ? found.error.message : 'its expiry is not in a known form';
        scope.log.warn('a trash entry cannot be read, so it never expires', {
          store: storeRoot.store,
          volume: id,
          why,
        });
        reported.add(id);
      }
      return remember(id, found);
    },
  };
}

export const runTrashScan = <T>({ runVerb }: VerbContext, scope: Scope, work: () => Promise<T>): Promise<T> =>
  runVerb('looking for expired entries of the trash', [], scope, work);
