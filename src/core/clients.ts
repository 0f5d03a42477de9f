import type { Log } from '#base/log.ts';
import type { Source, SourceKind, Volume } from './model.ts';
import type { Client, MountUse } from './ports.ts';

/** One client per source kind. A missing kind is a compile error. */
export type ClientTable = { readonly [K in SourceKind]: Client<K> };

/** The only place that selects a client by source kind. Pass the same source to `find` and to the client's method. */
export interface Clients {
  /** Undefined: this version does not know the kind. Records can have such kinds after a downgrade. */
  find(source: Source): Client | undefined;
  ofKind(kind: SourceKind): Client;
  /** False for an unknown kind. */
  isNodeLocal(source: Source): boolean;
  /** False for an unknown kind: this version cannot unstage it, so core removes the record together with the target. */
  outlivesMount(source: Source): boolean;
  /** False for an unknown kind. */
  isFixedWhileStaged(source: Source): boolean;
  /** The source for another mount of a staged volume. Returns `wanted` if the client does not share mounts or the kinds differ. */
  sharedSource(volume: Pick<Volume, 'store' | 'name'>, wanted: Source, staged: Source, log: Log): Source;
  /** The source for remounting a dead mount. Returns `staged` if the client does not share mounts or the kinds differ. */
  remountSource(staged: Source, now: Source): Source;
  /** The group that the volume is mounted for. Undefined: none, or the client does not support groups. */
  groupOf(source: Source): number | undefined;
  withMountOptions(source: Source, use: MountUse): Source;
  /** Undefined: the volume has no file system of its own. */
  filesystemOf(source: Source): string | undefined;
  isSingleUser(source: Source): boolean;
  /** Groups mounts by client, for methods that take several. Omits mounts of unknown kinds. */
  byClient<T extends { readonly source: Source }>(all: readonly T[]): readonly (readonly [Client, readonly T[]])[];
}

export function createClients(table: ClientTable): Clients {
  // TypeScript cannot relate a source to its table entry, and a stored source may have an unknown kind.
  const find = (source: Source): Client | undefined => table[source.kind] as Client | undefined;
  /** Undefined if the kinds differ or the client does not share mounts. */
  const sharingOf = (one: Source, other: Source): Client['sharing'] =>
    one.kind === other.kind ? find(one)?.sharing : undefined;
  return {
    find,
    ofKind: (kind) => table[kind] as Client,
    isNodeLocal: (source) => find(source)?.nodeLocal === true,
    outlivesMount: (source) => find(source)?.outlivesMount === true,
    isFixedWhileStaged: (source) => find(source)?.sourceFixedWhileStaged === true,
    sharedSource: (volume, wanted, staged, log) =>
      sharingOf(wanted, staged)?.sharedSource(volume, wanted, staged, log) ?? wanted,
    remountSource: (staged, now) => sharingOf(staged, now)?.remountSource(staged, now) ?? staged,
    groupOf: (source) => find(source)?.sharing?.groupOf(source),
    withMountOptions: (source, use) => find(source)?.withMountOptions?.(source, use) ?? source,
    filesystemOf: (source) => find(source)?.filesystemOf?.(source),
    isSingleUser: (source) => find(source)?.isSingleUser?.(source) === true,
    byClient: (all) => {
      const groups = Map.groupBy(all, ({ source }) => find(source));
      return [...groups].flatMap(([client, group]) => (client === undefined ? [] : [[client, group] as const]));
    },
  };
}
