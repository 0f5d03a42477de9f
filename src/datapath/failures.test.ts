import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { openExport } from '#testing/nfs-export.ts';
import { mountNfs } from '#testing/nfs-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { FileSystemOptions } from './file-system.ts';

const run = promisify(execFile);

describe.skipIf(needs('fuse', 'ganesha', 'perl'))('a server that does not answer', () => {
  const it = exportedByGanesha();

  const mounted = async (ground: ScratchFolder, options: Partial<FileSystemOptions> = {}) => {
    const opened = await openExport(it.server, 'it', { dialRounds: 1 });
    const mount = await mountNfs(ground.folder, { nfs: opened.nfs, root: it.directory }, options);
    const path = (name: string): string => join(mount.at, name);
    const end = async () => {
      await mount[Symbol.asyncDispose]();
      opened[Symbol.dispose]();
    };
    return { mount, path, [Symbol.asyncDispose]: end };
  };

  test('readlink reports an overlong target, and other calls do not fail', async () => {
    using ground = createScratchFolder();
    const readlink = async (): Promise<string> => 'x'.repeat(4096);
    await fs.symlink('somewhere', it.on('link'));
    await using mount = await mountNfs(ground.folder, { nfs: { ...it.nfs, readlink }, root: it.directory });
    await expect(run('cat', [join(mount.at, 'link')])).rejects.toThrow('File name too long');
    expect((await run('ls', [mount.at])).stdout).toContain('link');
    expect(mount.faults).toEqual([]);
  });

  test('soft: calls fail with EIO after the timeout, and work again when the server answers', async () => {
    using ground = createScratchFolder();
    writeFileSync(it.on('file'), 'data');
    const softMs = 1_000;
    // For a busy machine.
    const slackMs = 5_000;
    await using on = await mounted(ground, { softMs, cacheMs: 0 });
    expect(await fs.readFile(on.path('file'), 'utf8')).toBe('data');
    await it.frozen(async () => {
      for (const args of [
        ['cat', on.path('file')],
        ['mkdir', on.path('new')],
        ['ls', on.mount.at],
      ] as const)
        await expect(run(args[0], [args[1]], { timeout: softMs + slackMs })).rejects.toThrow('Input/output error');
    });
    await expect.poll(() => fs.readFile(on.path('file'), 'utf8').catch(() => ''), { timeout: 10_000 }).toBe('data');
    expect(on.mount.faults).toEqual([]);
  });

  test('hard: calls wait for the server', async () => {
    using ground = createScratchFolder();
    writeFileSync(it.on('file'), 'data');
    await using on = await mounted(ground, { cacheMs: 0 });
    const read: { reading?: Promise<{ stdout: string }> } = {};
    await it.frozen(async () => {
      const reading = run('cat', [on.path('file')]);
      expect(await Promise.race([reading, sleep(2_500, 'waits')])).toBe('waits');
      read.reading = reading;
    });
    expect((await read.reading)?.stdout).toBe('data');
  });

  test('hard: a waiting process can be killed', async () => {
    using ground = createScratchFolder();
    writeFileSync(it.on('file'), 'data');
    await using on = await mounted(ground, { cacheMs: 0 });
    await it.frozen(async () => {
      for (const [program, arg] of [
        ['cat', 'file'],
        ['mkdir', 'new'],
        ['touch', 'new-file'],
      ] as const) {
        const child = spawn(program, [on.path(arg)], { stdio: 'ignore' });
        const ended = once(child, 'exit');
        expect(await Promise.race([ended, sleep(300, 'waits')])).toBe('waits');
        child.kill('SIGKILL');
        expect(await Promise.race([ended, sleep(10_000, 'waits')])).toEqual([null, 'SIGKILL']);
      }
    });
    expect(on.mount.faults).toEqual([]);
  });

  test('hard: calls continue after the server was killed and restarted', async () => {
    using ground = createScratchFolder();
    writeFileSync(it.on('file'), 'data');
    await using on = await mounted(ground, { cacheMs: 0 });
    expect(await fs.readFile(on.path('file'), 'utf8')).toBe('data');
    await it.server.kill();
    const work = Promise.all([
      run('cat', [on.path('file')]),
      run('mkdir', [on.path('directory')]),
      run('cp', [on.path('file'), on.path('copy')]),
    ]);
    expect(await Promise.race([work, sleep(1_500, 'waits')])).toBe('waits');
    await it.server.restart();
    const [{ stdout }] = await work;
    expect(stdout).toBe('data');
    expect((await fs.readdir(on.mount.at)).toSorted()).toEqual(['copy', 'directory', 'file']);
    expect(await fs.readFile(on.path('copy'), 'utf8')).toBe('data');
  });

  test('signals that a program handles do not interrupt its calls', async () => {
    using ground = createScratchFolder();
    await using on = await mounted(ground, { cacheMs: 0 });
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
    const { stdout } = await run('perl', ['-e', script, on.mount.at]);
    expect(Number(stdout)).toBeGreaterThan(100);
    expect(on.mount.faults).toEqual([]);
  });

  /** Another process has the file open. Not this one: it serves the mount and could not start processes then. */
  function holder(path: string) {
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
    let said = '';
    child.stdout.on('data', (data: Buffer) => {
      said += data.toString();
    });
    const answer = async (): Promise<string> => {
      await expect.poll(() => said, { timeout: 10_000, interval: 5 }).toContain('\n');
      const [line = '', rest = ''] = said.split('\n', 2);
      said = rest;
      return line;
    };
    return {
      child,
      isOpen: answer(),
      does: async (what: 'write' | 'sync' | 'close'): Promise<string> => {
        child.stdin.write(`${what}\n`);
        return await answer();
      },
      [Symbol.asyncDispose]: async () => {
        child.stdin.end();
        if (child.exitCode === null) await once(child, 'exit');
      },
    };
  }

  test('data that a restarted server lost are resent without an error', async () => {
    using ground = createScratchFolder();
    await using on = await mounted(ground);
    await using one = holder(on.path('file'));
    expect(await one.isOpen).toBe('open');
    expect([await one.does('write'), await one.does('write')]).toEqual(['ok', 'ok']);
    // The server's verifier is the second of its start.
    await sleep(1_100);
    await it.server.restart();
    expect([await one.does('write'), await one.does('sync')]).toEqual(['ok', 'ok']);
    expect(readFileSync(it.on('file'), 'utf8')).toBe('some data'.repeat(3));
    expect(await one.does('close')).toBe('ok');
    expect(on.mount.faults).toEqual([]);
  });

  test('a refused write is reported once to each process that has the file open', async () => {
    using ground = createScratchFolder();
    let isFull = false;
    const write: NfsClient['write'] = (...args) =>
      isFull ? Promise.reject(new NfsError('WRITE', nfsStatus.NOSPC, false)) : it.nfs.write(...args);
    await using mount = await mountNfs(ground.folder, { nfs: { ...it.nfs, write }, root: it.directory });
    const path = join(mount.at, 'file');
    await using one = holder(path);
    expect(await one.isOpen).toBe('open');
    await using other = holder(path);
    expect(await other.isOpen).toBe('open');
    isFull = true;
    expect(await one.does('write')).toBe('ok');
    const full = 'No space left on device';
    expect(await one.does('sync')).toBe(full);
    isFull = false;
    expect([await one.does('write'), await one.does('sync'), await one.does('sync')]).toEqual(['ok', 'ok', 'ok']);
    expect([await other.does('sync'), await other.does('sync')]).toEqual([full, 'ok']);
    await using later = holder(path);
    expect(await later.isOpen).toBe('open');
    expect(await later.does('sync')).toBe('ok');
    // Reported by the next write and by close.
    isFull = true;
    expect(await one.does('write')).toBe('ok');
    await expect.poll(() => one.does('write')).toBe(full);
    expect(await later.does('close')).toBe(full);
    expect(mount.faults).toEqual([]);
  });
});

/** All handles except the root's have a prefix; changing it makes them stale. */
function renumbered(nfs: NfsClient, root: FileHandle, number: () => number): NfsClient {
  const shown = (handle: FileHandle): FileHandle => Uint8Array.from([number(), ...handle]);
  const real = (handle: FileHandle): FileHandle => {
    if (Buffer.compare(handle, root) === 0) return handle;
    if (handle[0] !== number()) throw new NfsError('ANY', nfsStatus.STALE, false);
    return handle.subarray(1);
  };
  const made = async <T extends { readonly handle: FileHandle }>(result: Promise<T>): Promise<T> => {
    const found = await result;
    return { ...found, handle: shown(found.handle) };
  };
  return {
    ...nfs,
    getattr: async (handle, options) => await nfs.getattr(real(handle), options),
    setattr: async (handle, set, options) => await nfs.setattr(real(handle), set, options),
    lookup: async (directory, name, options) => await made(nfs.lookup(real(directory), name, options)),
    create: async (directory, name, how, options) => await made(nfs.create(real(directory), name, how, options)),
    mkdir: async (directory, name, set, options) => await made(nfs.mkdir(real(directory), name, set, options)),
    read: async (handle, offset, into, options) => await nfs.read(real(handle), offset, into, options),
    write: async (handle, offset, data, stable, options) =>
      await nfs.write(real(handle), offset, data, stable, options),
    commit: async (handle, offset, count, options) => await nfs.commit(real(handle), offset, count, options),
    remove: async (directory, name, options) => await nfs.remove(real(directory), name, options),
  };
}

describe.skipIf(needs('fuse', 'ganesha'))('a stale file handle', () => {
  const it = exportedByGanesha();

  test("is replaced by looking up the file's path again", async () => {
    using ground = createScratchFolder();
    let number = 1;
    const nfs = renumbered(it.nfs, it.directory, () => number);
    await using mount = await mountNfs(ground.folder, { nfs, root: it.directory }, { cacheMs: 60_000 });
    await fs.mkdir(join(mount.at, 'a/b'), { recursive: true });
    const path = join(mount.at, 'a/b/file');
    await fs.writeFile(path, 'before');
    await using file = await fs.open(path, 'r+');
    number = 2;
    await file.write('after!', 0);
    await file.sync();
    number = 3;
    expect(await fs.readFile(path, 'utf8')).toBe('after!');
    await fs.writeFile(join(mount.at, 'a/b/new'), '');
    expect(mount.faults).toEqual([]);
  });

  test('fails with ESTALE for an open file if another file took its place', async () => {
    using ground = createScratchFolder();
    await using mount = await mountNfs(ground.folder, { nfs: it.nfs, root: it.directory });
    const path = join(mount.at, 'file');
    await fs.writeFile(path, 'old');
    await using file = await fs.open(path, 'r+');
    await it.nfs.remove(it.directory, 'file');
    const { handle } = await it.nfs.create(it.directory, 'file', { mode: 'guarded', set: { mode: 0o600 } });
    await it.nfs.write(handle, 0, Buffer.from('new'), 2);
    await file.write('lost', 0);
    await expect(file.sync()).rejects.toThrow('-116');
    expect(await fs.readFile(path, 'utf8')).toBe('new');
  });
});
