import type { Log } from '#base/log.ts';
import type { Source, SourceKind, Volume } from './model.ts';
import type { Client, MountUse } from './ports.ts';

/** One client per kind of source. A kind without a client does not compile where this table is written. */
export type ClientTable = { readonly [K in SourceKind]: Client<K> };

/** The only place that chooses a client by the kind of a source. Pass the same source to `find` and to the verb of the client. */
export interface Clients {
  /** Undefined: a kind that only a newer Stowage knows. A record may have one after a downgrade. */
  find(source: Source): Client | undefined;
  ofKind(kind: SourceKind): Client;
  /** False for an unknown kind. */
  isNodeLocal(source: Source): boolean;
  /** False for an unknown kind: this version cannot unstage it, so core removes its record together with its target. */
  outlivesMount(source: Source): boolean;
  /** False for an unknown kind. */
  isFixedWhileStaged(source: Source): boolean;
  /** The source for one more mount of a volume that is staged. `wanted` itself if the client does not share, or the kinds differ. */
  join(volume: Pick<Volume, 'store' | 'name'>, wanted: Source, staged: Source, log: Log): Source;
  /** The source that replaces a dead mount. `staged` itself if the client does not share, or the kinds differ. */
  replace(staged: Source, now: Source): Source;
  /** Undefined: none, or the client does not mount for groups. */
  groupOf(source: Source): number | undefined;
  withMountOptions(source: Source, use: MountUse): Source;
  /** Undefined: the volume has no file system of its own. */
  filesystemOf(source: Source): string | undefined;
  isSingleUser(source: Source): boolean;
  /** Groups mounts by client, for verbs that take many. Leaves out mounts of unknown kinds. */
  byClient<T extends { readonly source: Source }>(all: readonly T[]): readonly (readonly [Client, readonly T[]])[];
}

export function createClients(table: ClientTable): Clients {
  // TypeScript cannot connect a source with its entry of the table, and a stored source may have a kind that is not in it.
  const find = (source: Source): Client | undefined => table[source.kind] as Client | undefined;
  /** Undefined as well if the two sources are of different kinds. */
  const sharingOf = (one: Source, other: Source): Client['sharing'] =>
    one.kind === other.kind ? find(one)?.sharing : undefined;
  return {
    find,
    ofKind: (kind) => table[kind] as Client,
    isNodeLocal: (source) => find(source)?.nodeLocal === true,
    outlivesMount: (source) => find(source)?.outlivesMount === true,
    isFixedWhileStaged: (source) => find(source)?.sourceFixedWhileStaged === true,
    join: (volume, wanted, staged, log) => sharingOf(wanted, staged)?.join(volume, wanted, staged, log) ?? wanted,
    replace: (staged, now) => sharingOf(staged, now)?.replace(staged, now) ?? staged,
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
