import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { constants } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { libc } from '#base/linux/libc.ts';
import { lacks } from '#testbed/lacks.ts';
import { createMemoryFileSystem } from '#testing/fakes/memory-file-system.ts';
import { defaultInitOptions, mountFuse } from '#testing/fuse-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { invalidateEntry, invalidateInode, resend } from './notify.ts';

const run = promisify(execFile);

/** Calls a C function that Node does not offer. Runs it on a thread, since the main thread serves the file system. */
async function callLibc(prototype: string, ...args: readonly unknown[]): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  libc()
    .func(prototype)
    .async(...args, (error: Error | null, result: number | bigint) =>
      error === null ? resolve(Number(result)) : reject(error),
    );
  return await promise;
}

const mountMemory = async (scratch: ScratchFolder, initOptions = defaultInitOptions) => {
  const memory = createMemoryFileSystem();
  const mount = await mountFuse(scratch, memory.operations, initOptions);
  return { memory, mount, path: (name: string) => join(mount.at, name) };
};

describe.skipIf(lacks('fuse'))('the FUSE protocol with this kernel', () => {
  test('a malformed reply fails its own request, and no other request', async () => {
    using scratch = createScratchFolder();
    const memory = createMemoryFileSystem();
    const readlink = (): Uint8Array => Buffer.alloc(4096, 'x');
    await using mount = await mountFuse(scratch, { ...memory.operations, readlink }, defaultInitOptions);
    await fs.symlink('somewhere', join(mount.at, 'link'));
    await expect(fs.readlink(join(mount.at, 'link'))).rejects.toThrow('EIO');
    await fs.writeFile(join(mount.at, 'file'), 'data');
    expect(await fs.readFile(join(mount.at, 'file'), 'utf8')).toBe('data');
  });

  test('files are created, written in large and small writes, read, truncated and removed', async () => {
    using scratch = createScratchFolder();
    const { memory, mount, path } = await mountMemory(scratch);
    await using _ = mount;
    const data = randomBytes(5_000_001);
    await fs.writeFile(path('file'), data, { mode: 0o640 });
    expect((await fs.readFile(path('file'))).equals(data)).toBe(true);
    await using file = await fs.open(path('file'), 'r+');
    await file.write(Buffer.from('small'), 0, 5, 4_000_000);
    await file.sync();
    await file.datasync();
    data.set(Buffer.from('small'), 4_000_000);
    await file.truncate(4_000_100);
    await file.utimes(1_000_000_000.25, 1_700_000_000.5);
    await file.chown(1234, 4_000_000_000);
    await file.chmod(0o4711);
    const stats = await fs.stat(path('file'));
    expect(stats).toMatchObject({ size: 4_000_100, mode: 0o104711, uid: 1234, gid: 4_000_000_000, nlink: 1 });
    expect([stats.atimeMs, stats.mtimeMs]).toEqual([1_000_000_000_250, 1_700_000_000_500]);
    expect((await fs.readFile(path('file'))).equals(data.subarray(0, 4_000_100))).toBe(true);
    await fs.unlink(path('file'));
    await expect(fs.stat(path('file'))).rejects.toThrow('ENOENT');
    expect(mount.faults).toEqual([]);
    expect(memory.calls).toEqual(
      expect.arrayContaining(['create', 'write', 'read', 'setattr', 'fsync', 'flush', 'unlink']),
    );
  });

  test('directories, links, renames and special files work', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountMemory(scratch);
    await using _ = mount;
    await fs.mkdir(path('a/b/c'), { recursive: true });
    await fs.symlink('../some/where', path('a/link'));
    expect(await fs.readlink(path('a/link'))).toBe('../some/where');
    await fs.writeFile(path('a/one'), '1');
    await fs.link(path('a/one'), path('a/b/two'));
    expect((await fs.stat(path('a/b/two'))).nlink).toBe(2);
    await fs.rename(path('a/one'), path('three'));
    expect(await fs.readFile(path('three'), 'utf8')).toBe('1');
    await expect(fs.rmdir(path('a'))).rejects.toThrow('ENOTEMPTY');
    await expect(fs.mkdir(path('a'))).rejects.toThrow('EEXIST');
    const renameat2 = 'int renameat2(int a, const char *from, int b, const char *to, unsigned int flags)';
    expect(await callLibc(renameat2, -100, path('three'), -100, path('a/b/two'), 1)).toBe(-1);
    await fs.writeFile(path('a/b/two'), 'two');
    expect(await callLibc(renameat2, -100, path('three'), -100, path('a/b/c'), 2)).toBe(0);
    expect((await fs.stat(path('three'))).isDirectory()).toBe(true);
    await run('mkfifo', [path('pipe')]);
    expect((await fs.stat(path('pipe'))).isFIFO()).toBe(true);
    await run('mknod', [path('device'), 'c', '5', '300']);
    expect((await fs.stat(path('device'))).rdev).toBe((5 << 8) | (300 & 0xff) | ((300 & ~0xff) << 12));
    await fs.rm(path('a'), { recursive: true });
    const name = Buffer.concat([Buffer.from(`${mount.at}/`), Buffer.alloc(255, 0xe9)]);
    await fs.writeFile(name, 'a name that is not UTF-8');
    expect(await fs.readdir(mount.at, { encoding: 'buffer' })).toContainEqual(Buffer.alloc(255, 0xe9));
    expect(mount.faults).toEqual([]);
  });

  test('directories longer than one reply are listed with and without attributes', async () => {
    for (const flags of [defaultInitOptions.flags, ['asyncRead'] as const]) {
      using scratch = createScratchFolder();
      const { mount, path } = await mountMemory(scratch, { ...defaultInitOptions, flags });
      await using _ = mount;
      const names = Array.from({ length: 2000 }, (_, i) => `a-name-that-is-not-short-${i}`);
      for (const name of names) await fs.writeFile(path(name), '');
      expect((await fs.readdir(mount.at)).toSorted()).toEqual(names.toSorted());
      const { stdout } = await run('ls', ['-lR', mount.at]);
      expect(stdout.trim().split('\n')).toHaveLength(2002);
      expect(mount.faults).toEqual([]);
    }
  });

  test('the kernel sends FORGET and BATCH_FORGET for looked up nodes', async () => {
    using scratch = createScratchFolder();
    const { memory, mount, path } = await mountMemory(scratch);
    await using _ = mount;
    for (let i = 0; i < 300; i++) await fs.writeFile(path(`file-${i}`), '');
    expect(memory.known()).toBe(300);
    for (let i = 0; i < 300; i++) await fs.unlink(path(`file-${i}`));
    await expect.poll(() => memory.known(), { timeout: 10_000 }).toBe(0);
  });

  test('statfs reports sizes beyond 32 bits', async () => {
    using scratch = createScratchFolder();
    const { mount } = await mountMemory(scratch);
    await using _ = mount;
    expect(await fs.statfs(mount.at)).toMatchObject({
      bsize: 4096,
      blocks: 2 ** 33,
      bfree: 2 ** 32,
      bavail: 1000,
      files: 500,
    });
  });

  test('extended attributes are set, read, listed and removed', async () => {
    using scratch = createScratchFolder();
    const { mount, path } = await mountMemory(scratch);
    await using _ = mount;
    await fs.writeFile(path('file'), '');
    const at = path('file');
    const value = Buffer.from('a value\0with a NUL');
    const set = 'int setxattr(const char *path, const char *name, void *value, size_t size, int flags)';
    const get = 'int64_t getxattr(const char *path, const char *name, void *value, size_t size)';
    expect(await callLibc(set, at, 'user.one', value, value.length, 0)).toBe(0);
    expect(await callLibc(get, at, 'user.one', null, 0)).toBe(value.length);
    const read = Buffer.alloc(100);
    expect(await callLibc(get, at, 'user.one', read, 100)).toBe(value.length);
    expect(read.subarray(0, value.length)).toEqual(value);
    expect(await callLibc(get, at, 'user.one', read, 3)).toBe(-1);
    expect(await callLibc(get, at, 'user.two', read, 100)).toBe(-1);
    const list = 'int64_t listxattr(const char *path, void *list, size_t size)';
    expect(await callLibc(list, at, read, 100)).toBe(9);
    expect(read.toString('latin1', 0, 9)).toBe('user.one\0');
    expect(await callLibc('int removexattr(const char *path, const char *name)', at, 'user.one')).toBe(0);
    expect(await callLibc(list, at, read, 100)).toBe(0);
  });

  test('the kernel stops sending an operation after ENOSYS', async () => {
    using scratch = createScratchFolder();
    const memory = createMemoryFileSystem();
    const { getxattr: _one, fallocate: _two, ...operations } = { ...memory.operations };
    await using mount = await mountFuse(scratch, operations);
    await fs.writeFile(join(mount.at, 'file'), 'x');
    const get = 'int64_t getxattr(const char *path, const char *name, void *value, size_t size)';
    expect(await callLibc(get, join(mount.at, 'file'), 'user.one', null, 0)).toBe(-1);
    await expect(run('fallocate', ['-l', '4096', '-p', join(mount.at, 'file')])).rejects.toThrow('unsupported');
    expect(mount.faults).toEqual([]);
  });

  test('the kernel passes locks to a file system that requested posixLocks and flockLocks', async () => {
    using scratch = createScratchFolder();
    const flags = [...defaultInitOptions.flags, 'posixLocks', 'flockLocks'] as const;
    const { memory, mount, path } = await mountMemory(scratch, { ...defaultInitOptions, flags });
    await using _ = mount;
    await fs.writeFile(path('file'), '');
    const holder = spawn('flock', [path('file'), 'sh', '-c', 'echo locked; read line'], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    await once(holder.stdout, 'data');
    await expect(run('flock', ['-n', path('file'), 'true'])).rejects.toMatchObject({ code: 1 });
    holder.stdin.end('\n');
    await once(holder, 'exit');
    await run('flock', ['-n', path('file'), 'true']);
    expect(memory.calls).toContain('setlk');
  });

  test('fallocate, lseek and copy_file_range work', async () => {
    using scratch = createScratchFolder();
    const { memory, mount, path } = await mountMemory(scratch);
    await using _ = mount;
    await run('fallocate', ['-l', '100000', path('file')]);
    expect((await fs.stat(path('file'))).size).toBe(100_000);
    await fs.writeFile(path('file'), 'to be copied');
    const [from, to] = [await fs.open(path('file')), await fs.open(path('other'), 'w+')];
    const copy = 'int64_t copy_file_range(int a, void *from, int b, void *to, size_t length, unsigned int flags)';
    expect(await callLibc(copy, from.fd, null, to.fd, null, 100, 0)).toBe(12);
    const seek = 'int64_t lseek(int fd, int64_t offset, int whence)';
    const [data, hole] = [3, 4];
    expect(await callLibc(seek, from.fd, 5, data)).toBe(5);
    expect(await callLibc(seek, from.fd, 5, hole)).toBe(12);
    await Promise.all([from.close(), to.close()]);
    expect(await fs.readFile(path('other'), 'utf8')).toBe('to be copied');
    expect(memory.calls).toEqual(expect.arrayContaining(['fallocate', 'copyFileRange', 'lseek']));
  });

  test('an interrupted process gets its reply at once', async () => {
    using scratch = createScratchFolder();
    const { memory, mount, path } = await mountMemory(scratch);
    await using _ = mount;
    await fs.writeFile(path('file'), 'x'.repeat(10_000));
    mount.device.write(invalidateInode((await fs.stat(path('file'))).ino, { offset: 0, length: 0 }));
    using _hold = memory.hold();
    const reader = spawn('cat', [path('file')], { stdio: 'ignore' });
    await expect.poll(() => memory.calls.includes('read'), { timeout: 10_000 }).toBe(true);
    reader.kill('SIGKILL');
    expect(await once(reader, 'exit')).toEqual([null, 'SIGKILL']);
  });

  test("notifications invalidate the kernel's caches", async () => {
    using scratch = createScratchFolder();
    const { memory, mount, path } = await mountMemory(scratch);
    await using _ = mount;
    await fs.writeFile(path('file'), 'old');
    await fs.readFile(path('file'));
    const { ino } = await fs.stat(path('file'));
    const request = { uid: 0, gid: 0, pid: 0, slot: 0, resent: false, signal: new AbortController().signal };
    await memory.operations.setattr(ino, { mode: 0o600 }, request);
    await memory.operations.write(ino, { fh: 0, offset: 0, flags: 0, openFlags: 0 }, Buffer.from('new'), request);
    expect((await fs.stat(path('file'))).mode & 0o777).toBe(0o644);
    mount.device.write(invalidateInode(ino));
    expect((await fs.stat(path('file'))).mode & 0o777).toBe(0o600);
    mount.device.write(invalidateInode(ino, { offset: 0, length: 0 }));
    expect(await fs.readFile(path('file'), 'utf8')).toBe('new');
    await memory.operations.unlink(1, Buffer.from('file'), request);
    await fs.stat(path('file'));
    mount.device.write(invalidateEntry(1, Buffer.from('file'), { expireOnly: false }));
    await expect(fs.stat(path('file'))).rejects.toThrow('ENOENT');
    // The kernel rejects an unknown name with ENOENT, which is not an error.
    expect(mount.device.write(invalidateEntry(1, Buffer.from('unknown'), { expireOnly: false }))).toBe(false);
  });

  test('the kernel resends requests without a reply', async () => {
    using scratch = createScratchFolder();
    const memory = createMemoryFileSystem();
    const resentFlags: boolean[] = [];
    const { promise, resolve } = Promise.withResolvers<void>();
    const neverAnswered = new Promise<never>(() => undefined);
    await using mount = await mountFuse(scratch, {
      ...memory.operations,
      statfs: (node, request) => {
        resentFlags.push(request.resent);
        resolve();
        return request.resent ? memory.operations.statfs(node, request) : neverAnswered;
      },
    });
    if (!mount.agreement.flags.includes('hasResend')) return;
    const statfsCall = fs.statfs(mount.at);
    await promise;
    mount.device.write(resend());
    expect(await statfsCall).toMatchObject({ bavail: 1000 });
    expect(resentFlags).toEqual([false, true]);
  });

  test('reading pauses while there is no memory for another request', async () => {
    using scratch = createScratchFolder();
    const memory = createMemoryFileSystem();
    await using mount = await mountFuse(scratch, memory.operations, defaultInitOptions, { slots: 3 });
    await fs.writeFile(join(mount.at, 'file'), 'x'.repeat(20_000));
    const held = memory.hold();
    const direct = Array.from({ length: 8 }, async () => {
      await using file = await fs.open(join(mount.at, 'file'), constants.O_RDONLY | constants.O_DIRECT);
      return (await file.read(Buffer.alloc(4096), 0, 4096, 4096)).bytesRead;
    });
    await expect
      .poll(() => memory.calls.filter((name) => name === 'read').length, { timeout: 10_000 })
      .toBeGreaterThan(1);
    held[Symbol.dispose]();
    expect(await Promise.all(direct)).toEqual(Array(8).fill(4096));
    expect(mount.faults).toEqual([]);
  });

  test('an unmount ends the device with ENODEV', async () => {
    using scratch = createScratchFolder();
    const { mount } = await mountMemory(scratch);
    await using _ = mount;
    await run('umount', [mount.at]);
    expect(await mount.ended).toBe('ENODEV');
  });
});
