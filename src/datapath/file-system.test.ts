import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { linkSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { useFiles } from '#testing/file-user.ts';
import { mountNfs } from '#testing/nfs-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';
import type { FileSystemOptions } from './file-system.ts';

const run = promisify(execFile);

describe.skipIf(lacks('fuse', 'ganesha', 'python3'))('a mounted NFS directory', () => {
  const exported = exportedByGanesha();

  const mountExported = async (scratch: ScratchFolder, options: Partial<FileSystemOptions> = {}) => {
    const mount = await mountNfs(scratch.folder, { nfs: exported.nfs, root: exported.directory }, options);
    return { mount, path: (name: string) => join(mount.at, name) };
  };

  test('files are created, written in large and small pieces, read back, truncated and removed', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountExported(scratch);
    await using _ = mount;
    const data = randomBytes(5_000_001);
    await fs.writeFile(path('file'), data, { mode: 0o640 });
    expect(readFileSync(exported.on('file')).equals(data)).toBe(true);
    await using file = await fs.open(path('file'), 'r+');
    await file.write(Buffer.from('small'), 0, 5, 4_000_000);
    data.set(Buffer.from('small'), 4_000_000);
    await file.sync();
    await file.truncate(4_000_100);
    expect((await file.stat()).size).toBe(4_000_100);
    expect((await fs.readFile(path('file'))).equals(data.subarray(0, 4_000_100))).toBe(true);
    await file.write(Buffer.from('beyond a hole'), 0, 13, 6_000_000);
    expect((await file.read(Buffer.alloc(10), 0, 10, 5_000_000)).buffer).toEqual(Buffer.alloc(10));
    expect(statSync(exported.on('file')).size).toBe(6_000_013);
    await fs.unlink(path('file'));
    await expect(fs.stat(path('file'))).rejects.toThrow('ENOENT');
    expect(mount.faults).toEqual([]);
  });

  test('owner, mode and times are set and match those on the server', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountExported(scratch);
    await using _ = mount;
    await fs.writeFile(path('file'), 'data');
    await fs.chown(path('file'), 4_000_000_000, 1234);
    await fs.chmod(path('file'), 0o4711);
    await fs.utimes(path('file'), 1_000_000_000.25, 1_700_000_000.5);
    for (const found of [await fs.stat(path('file')), statSync(exported.on('file'))]) {
      expect(found).toMatchObject({ size: 4, mode: 0o104711, uid: 4_000_000_000, gid: 1234, nlink: 1 });
      expect([found.atimeMs, found.mtimeMs]).toEqual([1_000_000_000_250, 1_700_000_000_500]);
    }
    await run('touch', ['-d', '@-5', path('file')]);
    expect((await fs.stat(path('file'))).mtimeMs).toBe(0);
    expect((await fs.statfs(mount.at)).blocks).toBeGreaterThan(0);
    expect(mount.faults).toEqual([]);
  });

  test('impossible sizes are refused and change nothing', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountExported(scratch);
    await using _ = mount;
    await using user = useFiles();
    const file = await user.open(path('file'));
    expect(await user.write(file, 0, 4096, 'x')).toBe('ok');
    for (const size of [2 ** 53, 2 ** 62]) {
      expect(await user.truncate(file, size)).toBe('EFBIG');
      expect(await user.write(file, size, 4096, 'y')).toBe('EFBIG');
    }
    const direct = await user.open(path('file'), 'O_RDWR', 'O_DIRECT');
    expect(await user.write(direct, 2 ** 62, 4096, 'y')).toBe('EFBIG');
    const reading = ['iflag=direct', 'bs=4096', `skip=${2 ** 50}`, 'count=1'];
    expect((await run('dd', [`if=${path('file')}`, ...reading, 'status=none'])).stdout).toBe('');
    for (const one of [file, direct]) expect([await user.sync(one), await user.close(one)]).toEqual(['ok', 'ok']);
    expect(readFileSync(exported.on('file'), 'utf8')).toBe('x'.repeat(4096));
    expect(mount.faults).toEqual([]);
  });

  test('directories, links, renames, special files and non-UTF-8 names work', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountExported(scratch);
    await using _ = mount;
    await fs.mkdir(path('a/b/c'), { recursive: true });
    await fs.symlink('../some/where', path('a/link'));
    expect(await fs.readlink(path('a/link'))).toBe('../some/where');
    await fs.writeFile(path('a/one'), '1');
    await fs.link(path('a/one'), path('a/b/two'));
    expect((await fs.stat(path('a/b/two'))).nlink).toBe(2);
    await fs.rename(path('a/one'), path('three'));
    expect(await fs.readFile(path('three'), 'utf8')).toBe('1');
    await expect(fs.stat(path('a/one'))).rejects.toThrow('ENOENT');
    // Two links of one file: POSIX requires that nothing happens.
    await fs.rename(path('three'), path('a/b/two'));
    expect(await fs.readFile(path('three'), 'utf8')).toBe('1');
    await expect(fs.rmdir(path('a'))).rejects.toThrow('ENOTEMPTY');
    await expect(fs.mkdir(path('a'))).rejects.toThrow('EEXIST');
    await expect(fs.open(path('three'), 'wx')).rejects.toThrow('EEXIST');
    await expect(fs.rename(path('three'), path('a'))).rejects.toThrow('EISDIR');
    await expect(fs.stat(path('n'.repeat(256)))).rejects.toThrow('ENAMETOOLONG');
    await run('mkfifo', [path('pipe')]);
    expect(statSync(exported.on('pipe')).isFIFO()).toBe(true);
    await run('mknod', [path('device'), 'c', '5', '300']);
    expect((await fs.stat(path('device'))).rdev).toBe(statSync(exported.on('device')).rdev);
    const name = Buffer.concat([Buffer.from(`${mount.at}/`), Buffer.alloc(255, 0xe9)]);
    await fs.writeFile(name, 'a name that is not UTF-8');
    await fs.writeFile(path('für'), 'one that is');
    const names = await fs.readdir(mount.at, { encoding: 'buffer' });
    expect(names).toContainEqual(Buffer.alloc(255, 0xe9));
    expect(names).toContainEqual(Buffer.from('für'));
    expect(await fs.readFile(name, 'utf8')).toBe('a name that is not UTF-8');
    await fs.rm(path('a'), { recursive: true });
    expect(readdirSync(exported.folder).toSorted()).toEqual(expect.arrayContaining(['device', 'für', 'pipe', 'three']));
    expect(mount.faults).toEqual([]);
  });

  test('a removed file is usable while it is open, and gone afterwards', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountExported(scratch);
    await using _ = mount;
    await fs.writeFile(path('file'), 'before');
    linkSync(exported.on('file'), exported.on('other'));
    await using file = await fs.open(path('file'), 'r+');
    await fs.unlink(path('file'));
    await expect(fs.stat(path('file'))).rejects.toThrow('ENOENT');
    expect((await file.stat()).nlink).toBe(1);
    await fs.unlink(path('other'));
    expect((await file.stat()).nlink).toBe(0);
    await file.write('after!', 0);
    expect((await file.read(Buffer.alloc(6), 0, 6, 0)).buffer.toString()).toBe('after!');
    expect(readdirSync(exported.folder)).toEqual([expect.stringMatching(/^\.nfs[0-9a-f]{24}$/)]);
    await file.close();
    await expect.poll(() => readdirSync(exported.folder)).toEqual([]);
    expect(mount.faults).toEqual([]);
  });

  test('a file replaced while open is still readable; a failed rename leaves it in place', async () => {
    using scratch = createScratchFolder();
    let isRefusing = true;
    const rename: typeof exported.nfs.rename = (from, to, options) =>
      isRefusing && String(from.name) === 'new'
        ? Promise.reject(new NfsError('RENAME', nfsStatus.ACCES, false))
        : exported.nfs.rename(from, to, options);
    await using mount = await mountNfs(scratch.folder, { nfs: { ...exported.nfs, rename }, root: exported.directory });
    const path = (name: string): string => join(mount.at, name);
    await fs.writeFile(path('old'), 'old');
    await fs.writeFile(path('new'), 'new');
    await using file = await fs.open(path('old'), 'r');
    await expect(fs.rename(path('new'), path('old'))).rejects.toThrow('EACCES');
    expect(readdirSync(exported.folder).toSorted()).toEqual(['new', 'old']);
    expect((await file.stat()).nlink).toBe(1);
    isRefusing = false;
    await fs.rename(path('new'), path('old'));
    expect((await file.stat()).nlink).toBe(0);
    expect(await file.readFile('utf8')).toBe('old');
    expect(await fs.readFile(path('old'), 'utf8')).toBe('new');
    await file.close();
    await expect.poll(() => readdirSync(exported.folder)).toEqual(['old']);
    expect(mount.faults).toEqual([]);
  });

  test('a directory of many pages lists each name once, with and without attributes', async () => {
    using scratch = createScratchFolder();
    const names = Array.from({ length: 6_000 }, (_, i) => `a-name-that-is-not-short-${i}`);
    mkdirSync(exported.on('many'));
    for (const name of names) writeFileSync(exported.on(`many/${name}`), '');
    const { mount, path } = await mountExported(scratch);
    await using _ = mount;
    expect((await fs.readdir(path('many'))).toSorted()).toEqual(names.toSorted());
    const { stdout } = await run('ls', ['-la', path('many')], { maxBuffer: 2 ** 24 });
    expect(stdout.trim().split('\n')).toHaveLength(6_003);
    await run('rm', ['-r', path('many')]);
    expect(readdirSync(exported.folder)).toEqual([]);
    expect(mount.faults).toEqual([]);
  });

  test('attributes from a listing are not requested again', async () => {
    using scratch = createScratchFolder();
    for (let i = 0; i < 50; i++) writeFileSync(exported.on(`file-${i}`), 'x');
    const calledNames: string[] = [];
    const nfs = new Proxy(exported.nfs, {
      get: (target, name: keyof typeof exported.nfs) => {
        calledNames.push(name);
        return target[name];
      },
    });
    const mount = await mountNfs(scratch.folder, { nfs, root: exported.directory }, { cacheMs: 30_000 });
    await using _ = mount;
    await fs.readdir(mount.at);
    calledNames.length = 0;
    for (let i = 0; i < 50; i++) expect((await fs.stat(join(mount.at, `file-${i}`))).size).toBe(1);
    expect(calledNames).toEqual([]);
    // Own changes do not expire the cache.
    await fs.unlink(join(mount.at, 'file-3'));
    await fs.writeFile(join(mount.at, 'new'), '');
    calledNames.length = 0;
    await expect(fs.stat(join(mount.at, 'file-3'))).rejects.toThrow('ENOENT');
    expect((await fs.stat(join(mount.at, 'file-4'))).size).toBe(1);
    expect(calledNames).toEqual([]);
  });

  test('a read-only mount refuses all changes', async () => {
    using scratch = createScratchFolder();
    writeFileSync(exported.on('file'), 'data');
    const { mount, path } = await mountExported(scratch, { readOnly: true });
    await using _ = mount;
    expect(await fs.readFile(path('file'), 'utf8')).toBe('data');
    const changes = [
      () => fs.writeFile(path('file'), ''),
      () => fs.writeFile(path('new'), ''),
      () => fs.mkdir(path('new')),
      () => fs.unlink(path('file')),
      () => fs.rename(path('file'), path('new')),
      () => fs.chmod(path('file'), 0o600),
      () => fs.symlink('x', path('new')),
      () => fs.truncate(path('file'), 1),
    ];
    for (const change of changes) await expect(change()).rejects.toThrow('EROFS');
    expect(readFileSync(exported.on('file'), 'utf8')).toBe('data');
  });

  test('everything works with caching off and small transfers', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountExported(scratch, { cacheMs: 0, maxRead: 4096, maxWrite: 5000 });
    await using _ = mount;
    const data = randomBytes(300_000);
    await fs.writeFile(path('file'), data);
    expect(readFileSync(exported.on('file')).equals(data)).toBe(true);
    expect((await fs.readFile(path('file'))).equals(data)).toBe(true);
    writeFileSync(exported.on('other'), 'seen at once');
    expect(await fs.readFile(path('other'), 'utf8')).toBe('seen at once');
    // Through another client: the server does not look at its disk again at once.
    const { handle } = await exported.nfs.lookup(exported.directory, 'other');
    await exported.nfs.setattr(handle, { size: 17 });
    expect((await fs.stat(path('other'))).size).toBe(17);
    await fs.rename(path('other'), path('file'));
    await fs.unlink(path('file'));
    expect(readdirSync(exported.folder)).toEqual([]);
    expect(mount.faults).toEqual([]);
  });

  test('nodes that the kernel has forgotten are forgotten', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountExported(scratch);
    await using _ = mount;
    for (let i = 0; i < 300; i++) await fs.writeFile(path(`file-${i}`), '');
    await run('ls', ['-l', mount.at]);
    for (let i = 0; i < 300; i++) await fs.unlink(path(`file-${i}`));
    await expect.poll(() => mount.nodes.size, { timeout: 10_000 }).toBe(0);
    expect(mount.faults).toEqual([]);
  });
});
