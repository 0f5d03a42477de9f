import { execFile } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { openExport } from '#testing/nfs-export.ts';
import { mountNfs } from '#testing/nfs-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { Attributes } from '#wire/nfs3/structures.ts';

const run = promisify(execFile);
const neverAborts = new AbortController().signal;

/** Names and attributes of a recently changed object are cached for a second; wait a little longer. */
const pollOptions = { timeout: 5_000, interval: 50 };

describe.skipIf(lacks('fuse', 'ganesha'))('two mounts of one directory', () => {
  const exported = exportedByGanesha();

  async function mountTwice(scratch: ScratchFolder) {
    await using stack = new AsyncDisposableStack();
    const [one, other] = [
      stack.use(await openExport(exported.server, 'it')),
      stack.use(await openExport(exported.server, 'it')),
    ];
    const a = stack.use(await mountNfs(`${scratch.folder}/a`, { nfs: one.nfs, root: exported.directory }));
    const b = stack.use(await mountNfs(`${scratch.folder}/b`, { nfs: other.nfs, root: exported.directory }));
    const faults = () => [...a.faults, ...b.faults];
    const resources = stack.move();
    return {
      faults,
      a: (name: string) => join(a.at, name),
      b: (name: string) => join(b.at, name),
      [Symbol.asyncDispose]: () => resources.disposeAsync(),
    };
  }

  test('opening a file shows what another mount wrote and closed', async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    await fs.writeFile(a('file'), 'first');
    for (const [i, text] of ['other', 'longer than before', 'short', ''].entries()) {
      // Read it first, so that it is cached.
      await fs.readFile(b('file'));
      await (i % 2 === 0 ? fs.writeFile(a('file'), text) : fs.writeFile(b('file'), text));
      for (const path of [b('file'), a('file')]) {
        await using file = await fs.open(path, 'r');
        expect((await file.stat()).size).toBe(text.length);
        expect(await file.readFile('utf8')).toBe(text);
      }
    }
    expect(mounts.faults()).toEqual([]);
  });

  test("unchanged files stay in the kernel's cache, files changed in place do not", async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    await fs.writeFile(a('file'), 'A'.repeat(10_000));
    expect(await fs.readFile(b('file'), 'utf8')).toBe('A'.repeat(10_000));
    for (const letter of ['B', 'C', 'D']) {
      const file = await fs.open(a('file'), 'r+');
      await file.write(letter.repeat(10), 5_000);
      await file.close();
      expect((await fs.readFile(b('file'), 'utf8')).slice(5_000, 5_010)).toBe(letter.repeat(10));
    }
  });

  test("own writes are read from the kernel's cache, before and after close", async () => {
    using scratch = createScratchFolder();
    let reads = 0;
    const read: NfsClient['read'] = (...args) => {
      reads++;
      return exported.nfs.read(...args);
    };
    await using mount = await mountNfs(scratch.folder, { nfs: { ...exported.nfs, read }, root: exported.directory });
    const path = join(mount.at, 'file');
    // Whole pages: the kernel would read the rest of partial ones.
    const data = Buffer.alloc(4096 * 700, 'some text ');
    const file = await fs.open(path, 'w+');
    await file.write(data);
    for (let i = 0; i < 3; i++) {
      await file.write('another', 500_000 * i);
      data.set(Buffer.from('another'), 500_000 * i);
      expect((await file.stat()).size).toBe(data.length);
      expect((await file.read(Buffer.alloc(10), 0, 10, 500_000 * i)).buffer.toString()).toBe('anotherxt ');
    }
    await file.close();
    expect((await fs.stat(path)).size).toBe(data.length);
    expect((await fs.readFile(path)).equals(data)).toBe(true);
    expect(reads).toBe(0);
  });

  test('a file truncated on the other mount is short here, with zeros where it was extended again', async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    await fs.writeFile(a('file'), 'x'.repeat(9_000));
    expect(await fs.readFile(b('file'), 'utf8')).toHaveLength(9_000);
    await fs.truncate(a('file'), 10);
    expect(await fs.readFile(b('file'), 'utf8')).toBe('x'.repeat(10));
    await fs.truncate(a('file'), 8_000);
    expect(await fs.readFile(b('file'))).toEqual(Buffer.concat([Buffer.from('x'.repeat(10)), Buffer.alloc(7_990)]));
  });

  test('lines appended alternately by both mounts are all present', async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    const lines = Array.from({ length: 40 }, (_, i) => `line ${i} ${'.'.repeat(i)}\n`);
    for (const [i, line] of lines.entries()) await fs.appendFile(i % 2 === 0 ? a('log') : b('log'), line);
    expect(await fs.readFile(a('log'), 'utf8')).toBe(lines.join(''));
    expect(await fs.readFile(b('log'), 'utf8')).toBe(lines.join(''));
    // An open through a descriptor has no name to look up, and still succeeds.
    await run('sh', ['-c', 'exec 3>>"$1"; echo more >> "$2"; echo last >> /proc/self/fd/3', 'sh', a('log'), b('log')]);
    expect(await fs.readFile(b('log'), 'utf8')).toContain('last\n');
  });

  test('a file replaced on the other mount is the new file here at once', async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    for (let i = 0; i < 20; i++) {
      await fs.writeFile(a('new'), `content ${i}`);
      await fs.rename(a('new'), a('file'));
      expect(await fs.readFile(b('file'), 'utf8')).toBe(`content ${i}`);
    }
  });

  test('an object removed and recreated on the other mount, even as a directory, is found', async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    await fs.mkdir(a('directory'));
    await fs.writeFile(a('directory/file'), 'old');
    expect(await fs.readFile(b('directory/file'), 'utf8')).toBe('old');
    await fs.rm(a('directory'), { recursive: true });
    await fs.mkdir(a('directory'));
    await fs.writeFile(a('directory/file'), 'new');
    expect(await fs.readFile(b('directory/file'), 'utf8')).toBe('new');
  });

  test('names created and removed on the other mount appear and vanish here within the cache time', async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    const exists = (path: string): Promise<boolean> => fs.stat(path).then(Boolean, () => false);
    expect(await exists(b('file'))).toBe(false);
    await fs.writeFile(a('file'), '');
    await expect.poll(() => exists(b('file')), pollOptions).toBe(true);
    expect(await fs.readdir(b(''))).toEqual(['file']);
    await fs.unlink(a('file'));
    await expect.poll(() => exists(b('file')), pollOptions).toBe(false);
    await fs.writeFile(a('file'), 'x');
    await fs.chmod(a('file'), 0o600);
    await expect.poll(() => exists(b('file')), pollOptions).toBe(true);
    await fs.chmod(a('file'), 0o640);
    await expect.poll(async () => (await fs.stat(b('file'))).mode & 0o777, pollOptions).toBe(0o640);
  });

  test('an unchanged file is cached for longer, except when it is opened', async () => {
    using scratch = createScratchFolder();
    await fs.writeFile(exported.on('new'), 'tells the time of the server');
    await fs.writeFile(exported.on('old'), 'before');
    const newest = BigInt((await fs.stat(exported.on('new'))).ino);
    // ctime cannot be set, so the kernel gets the server's.
    const withOldTimes = <A extends Attributes | undefined>(attributes: A): A =>
      attributes === undefined || attributes.fileId === newest
        ? attributes
        : { ...attributes, mtime: attributes.mtime - 10_000, ctime: attributes.ctime - 10_000 };
    const nfs: NfsClient = {
      ...exported.nfs,
      getattr: async (...args) => withOldTimes(await exported.nfs.getattr(...args)),
      lookup: async (...args) => {
        const found = await exported.nfs.lookup(...args);
        return { ...found, attributes: withOldTimes(found.attributes), directory: withOldTimes(found.directory) };
      },
      read: async (...args) => {
        const found = await exported.nfs.read(...args);
        return { ...found, attributes: withOldTimes(found.attributes) };
      },
    };
    await using mount = await mountNfs(scratch.folder, { nfs, root: exported.directory });
    const [root, request] = [1, { uid: 0, gid: 0, pid: 0, slot: 0, resent: false, signal: neverAborts }];
    const lookup = async (name: string) => await mount.operations.lookup?.(root, Buffer.from(name), request);
    expect(await lookup('new')).toMatchObject({ attrMs: expect.closeTo(1_000, -2) });
    expect(await lookup('old')).toMatchObject({
      entryMs: expect.closeTo(30_000, -2),
      attrMs: expect.closeTo(30_000, -2),
    });
    // Waiting for a name takes less time.
    expect((await lookup('none'))?.entryMs).toBeLessThanOrEqual(1_000);

    const path = join(mount.at, 'old');
    expect(await fs.readFile(path, 'utf8')).toBe('before');
    for (const text of ['changed and longer', 'short', '']) {
      expect((await fs.stat(path)).isFile()).toBe(true);
      using other = await openExport(exported.server, 'it');
      const { handle } = await other.nfs.lookup(exported.directory, 'old');
      await other.nfs.setattr(handle, { size: 0 });
      if (text !== '') await other.nfs.write(handle, 0, Buffer.from(text), 2);
      await using file = await fs.open(path);
      expect((await file.stat()).size).toBe(text.length);
      expect(await file.readFile('utf8')).toBe(text);
    }
    expect(mount.faults).toEqual([]);
  });

  test('only one of two concurrent O_EXCL creations succeeds', async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    for (let i = 0; i < 20; i++) {
      const createExclusively = (path: string): Promise<number> =>
        fs.open(path, 'wx').then(
          (file) => file.close().then(() => 1),
          (cause: { readonly code?: string }) => {
            expect(cause.code).toBe('EEXIST');
            return 0;
          },
        );
      const results = await Promise.all([createExclusively(a(`lock-${i}`)), createExclusively(b(`lock-${i}`))]);
      expect(results.toSorted()).toEqual([0, 1]);
    }
  });

  test('a file created on both mounts at once is opened by both', async () => {
    using scratch = createScratchFolder();
    await using mounts = await mountTwice(scratch);
    const { a, b } = mounts;
    for (let i = 0; i < 20; i++) {
      await Promise.all([fs.writeFile(a(`file-${i}`), 'same'), fs.writeFile(b(`file-${i}`), 'same')]);
      expect(await fs.readFile(a(`file-${i}`), 'utf8')).toBe('same');
    }
    expect(mounts.faults()).toEqual([]);
  });
});
