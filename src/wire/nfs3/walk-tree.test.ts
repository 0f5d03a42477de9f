import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { openExport } from '#testing/nfs-export.ts';
import type { NfsClient } from './client.ts';
import { emptyDirectory, removeTree } from './remove-tree.ts';
import { NfsError } from './status.ts';
import type { EntryPlus, FileHandle } from './structures.ts';
import { walkTree } from './walk-tree.ts';

interface InterferingClient {
  readonly client: NfsClient;
  /** The server's error replies, for example `READDIRPLUS: NFS3ERR_STALE`. */
  readonly refusals: Set<string>;
}

/** Wraps the client. `onPage` runs between the reply with a page and its processing, like a change by another client. */
function interfere(
  nfs: NfsClient,
  onPage: (entries: readonly EntryPlus[], directory: FileHandle) => unknown,
): InterferingClient {
  const refusals = new Set<string>();
  const recordRefusals =
    <A extends unknown[], R>(call: (...args: A) => Promise<R>) =>
    async (...args: A): Promise<R> => {
      try {
        return await call(...args);
      } catch (cause) {
        if (cause instanceof NfsError) refusals.add(cause.message);
        throw cause;
      }
    };
  return {
    refusals,
    client: {
      ...nfs,
      lookup: recordRefusals(nfs.lookup),
      getattr: recordRefusals(nfs.getattr),
      remove: recordRefusals(nfs.remove),
      rmdir: recordRefusals(nfs.rmdir),
      readdirplus: recordRefusals(async (args, options) => {
        const page = await nfs.readdirplus(args, options);
        await onPage(page.entries, args.directory);
        return page;
      }),
    },
  };
}

/** Creates nested directories on the disk, with files in each. */
function createTree(at: string, width: number, depth: number, files: number): void {
  fs.mkdirSync(at);
  for (let i = 0; i < files; i++) fs.closeSync(fs.openSync(join(at, `file-${i}`), 'w'));
  for (let i = 0; depth > 0 && i < width; i++) createTree(join(at, `sub-${i}`), width, depth - 1, files);
}

const namesIn = (entries: readonly EntryPlus[]): readonly string[] => entries.map(({ name }) => name);

describe.skipIf(lacks('root', 'ganesha'))('removing a tree works', () => {
  const it = exportedByGanesha();
  const remove = (client: NfsClient = it.nfs): Promise<void> => removeTree(client, it.directory, 'tree');
  const isGone = (): boolean => !fs.existsSync(it.on('tree'));

  test('while another client removes directories that the walk is about to enter: STALE is no error', async () => {
    createTree(it.on('tree'), 6, 1, 5);
    using other = await openExport(it.server, 'it');
    let done = false;
    const { client, refusals } = interfere(it.nfs, async (entries, directory) => {
      if (done || !namesIn(entries).includes('sub-0')) return;
      done = true;
      for (const name of ['sub-0', 'sub-3', 'sub-5']) await removeTree(other.nfs, directory, name);
    });
    await remove(client);
    expect(isGone()).toBe(true);
    expect([...refusals]).toContain('READDIRPLUS: NFS3ERR_STALE');
    expect([...refusals]).toContain('RMDIR: NFS3ERR_NOENT');
  });

  test('while another client removes the directory whose files are being removed', async () => {
    createTree(it.on('tree'), 2, 1, 40);
    using other = await openExport(it.server, 'it');
    let done = false;
    const { client, refusals } = interfere(it.nfs, async (_entries, directory) => {
      const { handle: tree } = await other.nfs.lookup(it.directory, 'tree');
      if (done || Buffer.compare(tree, directory) === 0) return;
      done = true;
      await removeTree(other.nfs, it.directory, 'tree');
    });
    await remove(client);
    expect(isGone()).toBe(true);
    expect([...refusals]).toContain('REMOVE: NFS3ERR_STALE');
  });

  test('by four clients concurrently', async () => {
    createTree(it.on('tree'), 5, 2, 12);
    const others = await Promise.all([1, 2, 3].map(() => openExport(it.server, 'it')));
    await Promise.all([it, ...others].map(({ nfs }) => remove(nfs)));
    expect(isGone()).toBe(true);
    for (const other of others) other[Symbol.dispose]();
  });

  test('with files that another client adds meanwhile', async () => {
    createTree(it.on('tree'), 2, 1, 3);
    const { handle: tree } = await it.nfs.lookup(it.directory, 'tree');
    let added = 0;
    const { client, refusals } = interfere(it.nfs, async (_entries, directory) => {
      if (Buffer.compare(tree, directory) === 0 || ++added > 4) return;
      await it.nfs.create(directory, `added-${added}`, { mode: 'guarded', set: {} });
      await it.nfs.mkdir(directory, `made-${added}`, {});
    });
    await emptyDirectory(client, tree);
    expect(fs.readdirSync(it.on('tree'))).toEqual([]);
    expect([...refusals]).toContain('RMDIR: NFS3ERR_NOTEMPTY');
  });

  test('after an earlier removal was stopped half-way', async () => {
    createTree(it.on('tree'), 4, 2, 10);
    const caller = new AbortController();
    const onProgress = (done: number): void => {
      if (done === 50) caller.abort();
    };
    const options = { signal: caller.signal, onProgress };
    await expect(removeTree(it.nfs, it.directory, 'tree', options)).rejects.toThrow();
    expect(isGone()).toBe(false);
    await remove();
    expect(isGone()).toBe(true);
    // Removing a tree that does not exist succeeds, too.
    await remove();
  });

  describe('without following symbolic links', () => {
    const createOutside = (): string => {
      createTree(it.on('outside'), 2, 1, 3);
      return it.on('outside');
    };
    const expectOutsideIntact = (): void =>
      expect(fs.readdirSync(it.on('outside'), { recursive: true })).toHaveLength(11);

    test('to directories, files, parents, missing files and themselves', async () => {
      createTree(it.on('tree'), 2, 1, 2);
      const targets = [createOutside(), '../outside', '..', '.', '/', 'nothing', 'link-7'];
      targets.push(it.on('outside/file-0'));
      for (const folder of ['tree', 'tree/sub-0'])
        for (const [i, target] of targets.entries()) fs.symlinkSync(target, it.on(`${folder}/link-${i}`));
      const walked: string[] = [];
      await walkTree(it.nfs, (await it.nfs.lookup(it.directory, 'tree')).handle, ({ path }) => void walked.push(path));
      expect(walked).toHaveLength(2 + 2 * 3 + 2 * targets.length);
      await remove();
      expect(isGone()).toBe(true);
      expectOutsideIntact();
    });

    test('in place of the tree itself: its target stays', async () => {
      fs.symlinkSync(createOutside(), it.on('tree'));
      await remove();
      expect(isGone()).toBe(true);
      expectOutsideIntact();
    });

    test('in place of a directory that was replaced during the walk', async () => {
      createTree(it.on('tree'), 2, 1, 3);
      const to = createOutside();
      let done = false;
      const { client, refusals } = interfere(it.nfs, async (entries, tree) => {
        if (done || !namesIn(entries).includes('sub-1')) return;
        done = true;
        await it.nfs.rename({ directory: tree, name: 'sub-1' }, { directory: it.directory, name: 'moved' });
        await it.nfs.symlink(tree, 'sub-1', to, {});
      });
      await remove(client);
      expect(isGone()).toBe(true);
      expect([...refusals]).toContain('RMDIR: NFS3ERR_NOTDIR');
      expectOutsideIntact();
    });
  });
});
