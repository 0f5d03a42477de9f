import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { openExport } from '#testing/nfs-export.ts';
import { mountNfs } from '#testing/nfs-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { FileSystemOptions } from './file-system.ts';

const run = promisify(execFile);

describe.skipIf(lacks('fuse', 'ganesha', 'perl'))('a server that does not answer', () => {
  const exported = exportedByGanesha();

  const mountExported = async (scratch: ScratchFolder, options: Partial<FileSystemOptions> = {}) => {
    const opened = await openExport(exported.server, 'it', { dialRounds: 1 });
    const mount = await mountNfs(scratch.folder, { nfs: opened.nfs, root: exported.directory }, options);
    const path = (name: string): string => join(mount.at, name);
    const end = async () => {
      await mount[Symbol.asyncDispose]();
      opened[Symbol.dispose]();
    };
    return { mount, path, [Symbol.asyncDispose]: end };
  };

  test('readlink reports an overlong target, and other calls do not fail', async () => {
    using scratch = createScratchFolder();
    const readlink = async (): Promise<string> => 'x'.repeat(4096);
    await fs.symlink('somewhere', exported.on('link'));
    await using mount = await mountNfs(scratch.folder, {
      nfs: { ...exported.nfs, readlink },
      root: exported.directory,
    });
    await expect(run('cat', [join(mount.at, 'link')])).rejects.toThrow('File name too long');
    expect((await run('ls', [mount.at])).stdout).toContain('link');
    expect(mount.faults).toEqual([]);
  });

  test('soft: calls fail with EIO after the timeout, and work again when the server answers', async () => {
    using scratch = createScratchFolder();
    writeFileSync(exported.on('file'), 'data');
    const softMs = 1_000;
    // For a busy machine.
    const slackMs = 5_000;
    await using mounted = await mountExported(scratch, { softMs, cacheMs: 0 });
    expect(await fs.readFile(mounted.path('file'), 'utf8')).toBe('data');
    await exported.frozen(async () => {
      for (const args of [
        ['cat', mounted.path('file')],
        ['mkdir', mounted.path('new')],
        ['ls', mounted.mount.at],
      ] as const)
        await expect(run(args[0], [args[1]], { timeout: softMs + slackMs })).rejects.toThrow('Input/output error');
    });
    await expect
      .poll(() => fs.readFile(mounted.path('file'), 'utf8').catch(() => ''), { timeout: 10_000 })
      .toBe('data');
    expect(mounted.mount.faults).toEqual([]);
  });

  test('hard: calls wait for the server', async () => {
    using scratch = createScratchFolder();
    writeFileSync(exported.on('file'), 'data');
    await using mounted = await mountExported(scratch, { cacheMs: 0 });
    const pendingRead: { reading?: Promise<{ stdout: string }> } = {};
    await exported.frozen(async () => {
      const reading = run('cat', [mounted.path('file')]);
      expect(await Promise.race([reading, sleep(2_500, 'waits')])).toBe('waits');
      pendingRead.reading = reading;
    });
    expect((await pendingRead.reading)?.stdout).toBe('data');
  });

  test('hard: a waiting process can be killed', async () => {
    using scratch = createScratchFolder();
    writeFileSync(exported.on('file'), 'data');
    await using mounted = await mountExported(scratch, { cacheMs: 0 });
    await exported.frozen(async () => {
      for (const [program, arg] of [
        ['cat', 'file'],
        ['mkdir', 'new'],
        ['touch', 'new-file'],
      ] as const) {
        const child = spawn(program, [mounted.path(arg)], { stdio: 'ignore' });
        const ended = once(child, 'exit');
        expect(await Promise.race([ended, sleep(300, 'waits')])).toBe('waits');
        child.kill('SIGKILL');
        expect(await Promise.race([ended, sleep(10_000, 'waits')])).toEqual([null, 'SIGKILL']);
      }
    });
    expect(mounted.mount.faults).toEqual([]);
  });

  test('hard: calls continue after the server was killed and restarted', async () => {
    using scratch = createScratchFolder();
    writeFileSync(exported.on('file'), 'data');
    await using mounted = await mountExported(scratch, { cacheMs: 0 });
    expect(await fs.readFile(mounted.path('file'), 'utf8')).toBe('data');
    await exported.server.kill();
    const work = Promise.all([
      run('cat', [mounted.path('file')]),
      run('mkdir', [mounted.path('directory')]),
      run('cp', [mounted.path('file'), mounted.path('copy')]),
    ]);
    expect(await Promise.race([work, sleep(1_500, 'waits')])).toBe('waits');
    await exported.server.restart();
    const [{ stdout }] = await work;
    expect(stdout).toBe('data');
    expect((await fs.readdir(mounted.mount.at)).toSorted()).toEqual(['copy', 'directory', 'file']);
    expect(await fs.readFile(mounted.path('copy'), 'utf8')).toBe('data');
  });

  test('signals that a program handles do not interrupt its calls', async () => {
    using scratch = createScratchFolder();
    await using mounted = await mountExported(scratch, { cacheMs: 0 });
    // Without SA_RESTART, so that an interrupted call fails.
    const script = `
      use POSIX; use Time::HiRes qw(setitimer ITIMER_REAL time);
      my $count = 0;
      POSIX::sigaction(SIGALRM, POSIX::SigAction->new(sub { $count++ }, POSIX::SigSet->new, 0));
      setitimer(ITIMER_REAL, 0.0005, 0.0005);
      my $end = time + 20;
      for (my $i = 0; $count < 500 && time < $end; $i++) {
        my $fd = POSIX::open("$ARGV[0]/f$i", O_CREAT | O_RDWR, 0600) // die "open: $!";
        POSIX::write($fd, "x" x 100, 100) // die "write: $!";
        POSIX::close($fd) // die "close: $!";
        stat("$ARGV[0]/f$i") or die "stat: $!";
        unlink("$ARGV[0]/f$i") or die "unlink: $!";
      }
      print $count;`;
    const { stdout } = await run('perl', ['-e', script, mounted.mount.at]);
    expect(Number(stdout)).toBeGreaterThan(100);
    expect(mounted.mount.faults).toEqual([]);
  });

  /** Another process has the file open. Not this one: it serves the mount and could not start processes then. */
  function openInPerl(path: string) {
    const script = `
      use Fcntl; use IO::Handle; use POSIX ();
      $| = 1;
      sysopen(my $file, $ARGV[0], O_CREAT | O_RDWR, 0600) or die "open: $!";
      my %does = (
        write => sub { defined POSIX::write(fileno($file), "some data", 9) },
        sync => sub { $file->sync },
        close => sub { POSIX::close(fileno($file)) },
      );
      print "open\\n";
      while (my $what = <STDIN>) { chomp $what; print $does{$what}->() ? "ok\\n" : "$!\\n"; }`;
    const child = spawn('perl', ['-e', script, path], { stdio: ['pipe', 'pipe', 'ignore'] });
    let output = '';
    child.stdout.on('data', (data: Buffer) => {
      output += data.toString();
    });
    const answer = async (): Promise<string> => {
      await expect.poll(() => output, { timeout: 10_000, interval: 5 }).toContain('\n');
      const [line = '', rest = ''] = output.split('\n', 2);
      output = rest;
      return line;
    };
    return {
      child,
      isOpen: answer(),
      perform: async (operation: 'write' | 'sync' | 'close'): Promise<string> => {
        child.stdin.write(`${operation}\n`);
        return await answer();
      },
      [Symbol.asyncDispose]: async () => {
        child.stdin.end();
        if (child.exitCode === null) await once(child, 'exit');
      },
    };
  }

  test('data that a restarted server lost are resent without an error', async () => {
    using scratch = createScratchFolder();
    await using mounted = await mountExported(scratch);
    await using writer = openInPerl(mounted.path('file'));
    expect(await writer.isOpen).toBe('open');
    expect([await writer.perform('write'), await writer.perform('write')]).toEqual(['ok', 'ok']);
    // The server's verifier is the second of its start.
    await sleep(1_100);
    await exported.server.restart();
    expect([await writer.perform('write'), await writer.perform('sync')]).toEqual(['ok', 'ok']);
    expect(readFileSync(exported.on('file'), 'utf8')).toBe('some data'.repeat(3));
    expect(await writer.perform('close')).toBe('ok');
    expect(mounted.mount.faults).toEqual([]);
  });

  test('a refused write is reported once to each process that has the file open', async () => {
    using scratch = createScratchFolder();
    let isFull = false;
    const write: NfsClient['write'] = (...args) =>
      isFull ? Promise.reject(new NfsError('WRITE', nfsStatus.NOSPC, false)) : exported.nfs.write(...args);
    await using mount = await mountNfs(scratch.folder, { nfs: { ...exported.nfs, write }, root: exported.directory });
    const path = join(mount.at, 'file');
    await using writer = openInPerl(path);
    expect(await writer.isOpen).toBe('open');
    await using secondProcess = openInPerl(path);
    expect(await secondProcess.isOpen).toBe('open');
    isFull = true;
    expect(await writer.perform('write')).toBe('ok');
    const noSpaceText = 'No space left on device';
    expect(await writer.perform('sync')).toBe(noSpaceText);
    isFull = false;
    expect([await writer.perform('write'), await writer.perform('sync'), await writer.perform('sync')]).toEqual([
      'ok',
      'ok',
      'ok',
    ]);
    expect([await secondProcess.perform('sync'), await secondProcess.perform('sync')]).toEqual([noSpaceText, 'ok']);
    await using openedLater = openInPerl(path);
    expect(await openedLater.isOpen).toBe('open');
    expect(await openedLater.perform('sync')).toBe('ok');
    // Reported by the next write and by close.
    isFull = true;
    expect(await writer.perform('write')).toBe('ok');
    await expect.poll(() => writer.perform('write')).toBe(noSpaceText);
    expect(await openedLater.perform('close')).toBe(noSpaceText);
    expect(mount.faults).toEqual([]);
  });
});

/** All handles except the root's have a prefix; changing it makes them stale. */
function withHandlePrefix(nfs: NfsClient, root: FileHandle, prefix: () => number): NfsClient {
  const withPrefix = (handle: FileHandle): FileHandle => Uint8Array.from([prefix(), ...handle]);
  const withoutPrefix = (handle: FileHandle): FileHandle => {
    if (Buffer.compare(handle, root) === 0) return handle;
    if (handle[0] !== prefix()) throw new NfsError('ANY', nfsStatus.STALE, false);
    return handle.subarray(1);
  };
  const prefixResult = async <T extends { readonly handle: FileHandle }>(result: Promise<T>): Promise<T> => {
    const found = await result;
    return { ...found, handle: withPrefix(found.handle) };
  };
  return {
    ...nfs,
    getattr: async (handle, options) => await nfs.getattr(withoutPrefix(handle), options),
    setattr: async (handle, set, options) => await nfs.setattr(withoutPrefix(handle), set, options),
    lookup: async (directory, name, options) => await prefixResult(nfs.lookup(withoutPrefix(directory), name, options)),
    create: async (directory, name, mode, options) =>
      await prefixResult(nfs.create(withoutPrefix(directory), name, mode, options)),
    mkdir: async (directory, name, set, options) =>
      await prefixResult(nfs.mkdir(withoutPrefix(directory), name, set, options)),
    read: async (handle, offset, buffer, options) => await nfs.read(withoutPrefix(handle), offset, buffer, options),
    write: async (handle, offset, data, stable, options) =>
      await nfs.write(withoutPrefix(handle), offset, data, stable, options),
    commit: async (handle, offset, count, options) => await nfs.commit(withoutPrefix(handle), offset, count, options),
    remove: async (directory, name, options) => await nfs.remove(withoutPrefix(directory), name, options),
  };
}

describe.skipIf(lacks('fuse', 'ganesha'))('a stale file handle', () => {
  const exported = exportedByGanesha();

  test("is replaced by looking up the file's path again", async () => {
    using scratch = createScratchFolder();
    let prefix = 1;
    const nfs = withHandlePrefix(exported.nfs, exported.directory, () => prefix);
    await using mount = await mountNfs(scratch.folder, { nfs, root: exported.directory }, { cacheMs: 60_000 });
    await fs.mkdir(join(mount.at, 'a/b'), { recursive: true });
    const path = join(mount.at, 'a/b/file');
    await fs.writeFile(path, 'before');
    await using file = await fs.open(path, 'r+');
    prefix = 2;
    await file.write('after!', 0);
    await file.sync();
    prefix = 3;
    expect(await fs.readFile(path, 'utf8')).toBe('after!');
    await fs.writeFile(join(mount.at, 'a/b/new'), '');
    expect(mount.faults).toEqual([]);
  });

  test('fails with ESTALE for an open file if another file took its place', async () => {
    using scratch = createScratchFolder();
    await using mount = await mountNfs(scratch.folder, { nfs: exported.nfs, root: exported.directory });
    const path = join(mount.at, 'file');
    await fs.writeFile(path, 'old');
    await using file = await fs.open(path, 'r+');
    await exported.nfs.remove(exported.directory, 'file');
    const { handle } = await exported.nfs.create(exported.directory, 'file', { mode: 'guarded', set: { mode: 0o600 } });
    await exported.nfs.write(handle, 0, Buffer.from('new'), 2);
    await file.write('lost', 0);
    await expect(file.sync()).rejects.toThrow('-116');
    expect(await fs.readFile(path, 'utf8')).toBe('new');
  });
});
