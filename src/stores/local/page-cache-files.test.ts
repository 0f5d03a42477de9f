import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, renameSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { localFiles } from './files.ts';
import { filesIn, folderInCache } from './page-cache-files.ts';

describe.skipIf(lacks('linux'))('files of a store on a disk of this machine', () => {
  let ground: ScratchFolder;
  const at = (...names: readonly string[]): string => join(ground.folder, ...names);

  beforeEach(() => {
    ground = createScratchFolder();
    mkdirSync(at('store', 'sub'), { recursive: true });
    writeFileSync(at('store', 'one.meta'), 'some record');
    readFileSync(at('store', 'one.meta'));
  });
  afterEach(() => ground[Symbol.dispose]());

  /** Whether the work ended within this turn of the event loop, which a thread of the pool cannot do. */
  async function isSynchronous(work: Promise<unknown>): Promise<boolean> {
    let ended = false;
    void work.then(() => {
      ended = true;
    });
    for (let step = 0; step < 10; step++) await undefined;
    const wasSynchronous = ended;
    await work;
    return wasSynchronous;
  }

  test('are read synchronously if they are in the page cache', async () => {
    const files = await filesIn(at('store'));
    expect(await isSynchronous(files.lstat(at('store', 'one.meta')))).toBe(true);
    expect(await isSynchronous(files.read(at('store', 'one.meta'), 100))).toBe(true);
  });

  test('a folder has the identity that stat(2) gives, and another one after it was replaced', () => {
    const path = at('store');
    // Other devices have other numbers.
    for (const folder of [path, '/proc', '/dev', '/sys']) {
      const { dev, ino } = statSync(folder, { bigint: true });
      expect([folder, folderInCache(folder)]).toEqual([folder, { dev, ino }]);
    }
    const before = folderInCache(path);
    renameSync(path, at('aside'));
    mkdirSync(path);
    statSync(path);
    expect(folderInCache(path)?.ino).not.toBe(before?.ino);
    symlinkSync(path, at('way'));
    expect(folderInCache(at('way'))).toBeUndefined();
    expect(folderInCache(at('missing'))).toBeUndefined();
  });

  test('give the same results as through the thread pool', async () => {
    const files = await filesIn(at('store'));
    symlinkSync('one.meta', at('store', 'link'));
    symlinkSync(at('store'), at('way'));
    writeFileSync(at('store', 'empty'), '');
    writeFileSync(at('store', 'long'), Buffer.alloc(10_000, 'x'));
    execFileSync('mkfifo', [at('store', 'pipe')]);
    const resultOf = async <T>(work: Promise<T>): Promise<T | string> =>
      work.catch((thrown: unknown) => String(thrown));
    for (const name of ['one.meta', 'sub', 'link', 'empty', 'long', 'pipe', 'missing', 'one.meta/below']) {
      const path = at('store', name);
      expect([name, await resultOf(files.lstat(path))]).toEqual([name, await resultOf(localFiles.lstat(path))]);
      for (const limit of [5, 100, 10_000, 20_000])
        expect([name, await resultOf(files.read(path, limit))]).toEqual([
          name,
          await resultOf(localFiles.read(path, limit)),
        ]);
    }
    expect((await files.read(at('way', 'one.meta'), 100)).toString()).toBe('some record');
  });

  test('show the last write, and each reader gets its own buffer', async () => {
    const files = await filesIn(at('store'));
    const before = await files.read(at('store', 'one.meta'), 100);
    writeFileSync(at('store', 'one.meta'), 'another record, which is longer');
    expect((await files.read(at('store', 'one.meta'), 100)).toString()).toBe('another record, which is longer');
    expect(before.toString()).toBe('some record');
  });

  test.skipIf(lacks('root', 'mount'))(
    'are not read synchronously if another file system is mounted there',
    async () => {
      const files = await filesIn(at('store'));
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', '--', 'stowage-test', at('store', 'sub')]);
      writeFileSync(at('store', 'sub', 'inner'), 'below');
      expect(await isSynchronous(files.lstat(at('store', 'sub')))).toBe(false);
      expect(await isSynchronous(files.read(at('store', 'sub', 'inner'), 100))).toBe(false);
      expect((await files.read(at('store', 'sub', 'inner'), 100)).toString()).toBe('below');
    },
  );

  test.skipIf(lacks('root', 'mount'))('are not read synchronously on a file system of an unknown type', async () => {
    mkdirSync(at('other'));
    execFileSync('mount', ['-t', 'ramfs', '--', 'stowage-test', at('other')]);
    writeFileSync(at('other', 'one.meta'), 'some record');
    const files = await filesIn(at('other'));
    expect(await isSynchronous(files.lstat(at('other', 'one.meta')))).toBe(false);
    expect(await isSynchronous(files.read(at('other', 'one.meta'), 100))).toBe(false);
  });
});
