import * as fs from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { openExport, user } from '#testing/nfs-export.ts';
import { RpcError } from '../rpc/errors.ts';
import type { NfsClient } from './client.ts';
import { RemovalRefused, removeTree } from './remove-tree.ts';
import { NfsError, type NfsStatusName, nfsStatus } from './status.ts';
import { type Attributes, type EntryPlus, fileType } from './structures.ts';

// Objects that may not be removed stay, and nothing else stays because of them. See walk-tree.test.ts for removal itself.

const refusal = (procedure: string, status: NfsStatusName): NfsError =>
  new NfsError(procedure, nfsStatus[status], false);

async function errorOf(work: Promise<unknown>): Promise<unknown> {
  try {
    await work;
    return undefined;
  } catch (thrown) {
    return thrown;
  }
}

describe.skipIf(lacks('root', 'ganesha'))('removing a tree of another user', () => {
  const it = exportedByGanesha();
  const treePath = (path: string): string => it.on(`tree/${path}`);
  const remaining = (): string[] => fs.readdirSync(it.on('tree'), { recursive: true, encoding: 'utf8' }).sort();

  /** Removes the tree as user 1000, who owns all of it except the parts of root. Returns the error. */
  async function removeAsOwner(): Promise<unknown> {
    const open = await openExport(it.server, 'it', { identity: user(1000) });
    onTestFinished(() => open[Symbol.dispose]());
    return await errorOf(removeTree(open.nfs, it.directory, 'tree'));
  }

  function createTree(): void {
    const ownFolders = ['', 'deep', 'deep/deeper'];
    for (const folder of [...ownFolders, 'deep/of-root', 'deep/of-root/inner', 'closed'])
      fs.mkdirSync(treePath(folder));
    for (const file of ['a', 'deep/b', 'deep/deeper/c', 'closed/y']) fs.writeFileSync(treePath(file), 'x');
    for (const file of ['one', 'two', 'inner/x']) fs.writeFileSync(treePath(`deep/of-root/${file}`), 'x');
    for (const folder of [...ownFolders, 'deep/of-root/inner']) fs.chownSync(treePath(folder), 1000, 1000);
    fs.chmodSync(treePath('closed'), 0o700);
    fs.chownSync(it.folder, 1000, 1000);
  }

  test('removes everything except a directory whose files may not be removed, and one that may not be listed', async () => {
    createTree();
    const thrown = await removeAsOwner();
    const ofRoot = ['deep/of-root', 'deep/of-root/inner', 'deep/of-root/one', 'deep/of-root/two'];
    expect(remaining()).toEqual(['closed', 'closed/y', 'deep', ...ofRoot]);
    // The refusals: two files, the emptied directory `inner`, and the listing of `closed`.
    expect(thrown).toMatchObject({ name: 'RemovalRefused', refusals: 4, cause: { statusName: 'ACCES' } });
    expect(String(thrown)).toMatch(
      /^RemovalRefused: (closed: READDIRPLUS|deep\/of-root\/(one|two): REMOVE|deep\/of-root\/inner: RMDIR): NFS3ERR_ACCES; 3 more refused$/,
    );
  });

  test('removes the rest once that is allowed', async () => {
    createTree();
    expect(await removeAsOwner()).toBeInstanceOf(RemovalRefused);
    // Change the owner through the server, which may cache it for a while.
    const { handle: tree } = await it.nfs.lookup(it.directory, 'tree');
    const { handle: deep } = await it.nfs.lookup(tree, 'deep');
    for (const [parent, name] of [
      [tree, 'closed'],
      [deep, 'of-root'],
    ] as const)
      await it.nfs.setattr((await it.nfs.lookup(parent, name)).handle, { uid: 1000, gid: 1000 });
    expect(await removeAsOwner()).toBeUndefined();
    expect(fs.existsSync(it.on('tree'))).toBe(false);
  });

  test.each([
    ['a server that does not answer', new RpcError('no answer', { failure: 'deadline', maybeDone: true })],
    ['a file system that is read-only', refusal('REMOVE', 'ROFS')],
  ])('%s gets no calls for the remaining objects', async (_what, cause) => {
    fs.mkdirSync(it.on('tree'));
    for (let i = 0; i < 200; i++) fs.writeFileSync(treePath(`${i}`), '');
    let removeCalls = 0;
    const remove: NfsClient['remove'] = async () => {
      removeCalls++;
      throw cause;
    };
    expect(await errorOf(removeTree({ ...it.nfs, remove }, it.directory, 'tree', { atOnce: 4 }))).toBe(cause);
    expect(removeCalls).toBeGreaterThan(0);
    expect(remaining()).toHaveLength(200);
  });
});

test('a directory full of directories that may not be removed is visited once', async () => {
  const attributes = { type: fileType.directory, fsid: 1n } as Attributes;
  const handleOf = (name: string): Buffer => Buffer.from(name);
  const directories = Array.from({ length: 10_500 }, (_, i): EntryPlus => {
    const name = `directory-${i}`;
    return { fileId: BigInt(i), name, bytes: undefined, cookie: BigInt(i + 1), handle: handleOf(name), attributes };
  });
  let rmdirCalls = 0;
  const client = {
    lookup: async () => ({ handle: handleOf('tree'), attributes, directory: undefined }),
    getattr: async () => attributes,
    readdirplus: async ({ directory, cookie }: { readonly directory: Buffer; readonly cookie: bigint }) => {
      const all = String(directory) === 'tree' ? directories : [];
      const entries = all.slice(Number(cookie), Number(cookie) + 500);
      return { entries, verifier: 0n, isEnd: Number(cookie) + 500 >= all.length, attributes: undefined };
    },
    rmdir: async () => {
      rmdirCalls++;
      throw refusal('RMDIR', 'ACCES');
    },
  } as unknown as NfsClient;
  const thrown = await errorOf(removeTree(client, handleOf('export'), 'tree'));
  expect(thrown).toMatchObject({ name: 'RemovalRefused', refusals: rmdirCalls });
  expect(rmdirCalls).toBeGreaterThan(10_000);
  expect(rmdirCalls).toBeLessThan(11_000);
});
