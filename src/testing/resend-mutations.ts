import { deepEqual, equal } from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { create, link, mkdir, remove, rename, rmdir, setattr, symlink, write } from '#wire/nfs3/procedures.ts';
import { type FileHandle, stability } from '#wire/nfs3/structures.ts';
import type { ReplayingProxy } from './replaying-proxy.ts';

/** A folder on a server, node A, which reaches the server through a proxy, and node B, which reaches it directly. */
export interface ResendNodes {
  readonly proxy: ReplayingProxy;
  readonly a: NfsClient;
  readonly b: NfsClient;
  /** An empty directory, as a handle and as a path on the server's disk. */
  readonly directory: FileHandle;
  readonly folder: string;
  /** Another directory, with the file that node A uses to learn the server's write verifier. */
  readonly witnesses: FileHandle;
}

interface Prepared {
  /** Node A makes the change once. */
  byA(): Promise<unknown>;
  /** Node B changes the result afterwards. */
  byB(): Promise<unknown>;
  /** Checks the result of both changes, in this order. */
  check(): void;
}

export interface Mutation {
  readonly name: string;
  readonly procedure: number;
  readonly prepare: (nodes: ResendNodes) => Promise<Prepared>;
}

/** The call options of a `hard` mount. */
export const hardMount = { deadlineMs: Number.POSITIVE_INFINITY };
const guarded = { mode: 'guarded', set: { mode: 0o644 } } as const;

export const namesIn = (folder: string): string[] => readdirSync(folder).toSorted();
const textOf = ({ folder }: ResendNodes): string =>
  namesIn(folder).includes('file') ? readFileSync(join(folder, 'file'), 'utf8') : 'no such file';

/** Node B creates a file and writes its data to the server's disk. */
async function createByB({ b, directory }: ResendNodes, name: string): Promise<FileHandle> {
  const { handle } = await b.create(directory, name, guarded);
  await b.write(handle, 0, Buffer.from('of node B'), stability.fileSync);
  return handle;
}

/** Calls that remove a name. */
export const removingMutations: readonly Mutation[] = [
  {
    name: 'REMOVE',
    procedure: remove.number,
    prepare: async (nodes) => {
      const meant = await createByB(nodes, 'file');
      return {
        byA: () => nodes.a.remove(nodes.directory, 'file', { ...hardMount, expected: meant }),
        byB: () => createByB(nodes, 'file'),
        check: () => equal(textOf(nodes), 'of node B'),
      };
    },
  },
  {
    name: 'RMDIR',
    procedure: rmdir.number,
    prepare: async ({ a, b, directory, folder }) => {
      const { handle: meant } = await b.mkdir(directory, 'sub', {});
      return {
        byA: () => a.rmdir(directory, 'sub', { ...hardMount, expected: meant }),
        byB: () => b.mkdir(directory, 'sub', {}),
        check: () => deepEqual(namesIn(folder), ['sub']),
      };
    },
  },
  {
    name: 'RENAME',
    procedure: rename.number,
    prepare: async (nodes) => {
      const { a, b, directory } = nodes;
      const meant = await createByB(nodes, 'from');
      return {
        byA: () => a.rename({ directory, name: 'from' }, { directory, name: 'to' }, { ...hardMount, expected: meant }),
        byB: async () => {
          await b.rename({ directory, name: 'to' }, { directory, name: 'kept' });
          await createByB(nodes, 'from');
        },
        check: () => deepEqual(namesIn(nodes.folder), ['from', 'kept']),
      };
    },
  },
];

/** Calls that change data. */
export const dataMutations: readonly Mutation[] = [
  {
    name: 'WRITE',
    procedure: write.number,
    prepare: async (nodes) => {
      const file = await createByB(nodes, 'file');
      return {
        byA: () => nodes.a.write(file, 0, Buffer.from('of node A'), stability.fileSync, hardMount),
        byB: () => nodes.b.write(file, 0, Buffer.from('newer'), stability.fileSync),
        check: () => equal(textOf(nodes), 'newerde A'),
      };
    },
  },
  {
    name: 'SETATTR of the size',
    procedure: setattr.number,
    prepare: async (nodes) => {
      const file = await createByB(nodes, 'file');
      return {
        byA: () => nodes.a.setattr(file, { size: 0 }, hardMount),
        byB: () => nodes.b.write(file, 0, Buffer.from('newer'), stability.fileSync),
        check: () => equal(textOf(nodes), 'newer'),
      };
    },
  },
  {
    name: 'unchecked CREATE',
    procedure: create.number,
    prepare: async (nodes) => {
      const file = await createByB(nodes, 'file');
      const emptied = { mode: 'unchecked', set: { mode: 0o644, size: 0 } } as const;
      return {
        byA: () => nodes.a.create(nodes.directory, 'file', emptied, hardMount),
        byB: () => nodes.b.write(file, 0, Buffer.from('newer'), stability.fileSync),
        check: () => equal(textOf(nodes), 'newer'),
      };
    },
  },
];

/** Calls that create a name. */
export const creatingMutations: readonly Mutation[] = [
  {
    name: 'LINK',
    procedure: link.number,
    prepare: async (nodes) => {
      const file = await createByB(nodes, 'one');
      return {
        byA: () => nodes.a.link(file, { directory: nodes.directory, name: 'two' }, hardMount),
        byB: () => nodes.b.remove(nodes.directory, 'two'),
        check: () => deepEqual(namesIn(nodes.folder), ['one']),
      };
    },
  },
  {
    name: 'CREATE',
    procedure: create.number,
    prepare: async ({ a, b, directory, folder }) => ({
      byA: () => a.create(directory, 'new', guarded, hardMount),
      byB: () => b.remove(directory, 'new'),
      check: () => deepEqual(namesIn(folder), []),
    }),
  },
  {
    name: 'MKDIR',
    procedure: mkdir.number,
    prepare: async ({ a, b, directory, folder }) => ({
      byA: () => a.mkdir(directory, 'new', { mode: 0o755 }, hardMount),
      byB: () => b.rmdir(directory, 'new'),
      check: () => deepEqual(namesIn(folder), []),
    }),
  },
  {
    name: 'SYMLINK',
    procedure: symlink.number,
    prepare: async ({ a, b, directory, folder }) => ({
      byA: () => a.symlink(directory, 'new', 'target', {}, hardMount),
      byB: () => b.remove(directory, 'new'),
      check: () => deepEqual(namesIn(folder), []),
    }),
  },
];

export const mutations: readonly Mutation[] = [...removingMutations, ...dataMutations, ...creatingMutations];
