import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { useFiles } from '#testing/file-user.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { mountNfs } from '#testing/nfs-mount.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { mountSmall } from '#testing/small-export.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { stability } from '#wire/nfs3/structures.ts';
import { maxUnwrittenBytesPerMount } from './budget.ts';
import type { MountSpec } from './mount-spec.ts';

const run = promisify(execFile);
const mebibyte = 1024 * 1024;

/** One write of each size class of the journal, some overlapping. */
const pieces = [
  [0, mebibyte],
  [mebibyte, 100],
  [mebibyte + 100, 4096],
  [500_000, 60_000],
  [530_000, 5],
  [529_000, 3000],
  [3 * mebibyte, 200_000],
  [0, 7],
  [mebibyte + 50, 100],
].map(([offset = 0, size = 0], i) => ({ offset, size, letter: String.fromCharCode(97 + i) }));

const expectedContent = (): Buffer => {
  const all = Buffer.alloc(3 * mebibyte + 200_000);
  for (const { offset, size, letter } of pieces) all.fill(letter, offset, offset + size);
  return all;
};

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'python3'))('acknowledged writes', () => {
  const ganesha = ganeshaFolders('behind');

  async function mountExported(options: Partial<MountSpec> = {}) {
    const mounts = await startKeeperMounts();
    const { folder } = ganesha.fresh();
    const mount = await mounts.mount(await sourceOf(ganesha.server, folder), options);
    return { mounts, mount, folder, [Symbol.asyncDispose]: () => mounts[Symbol.asyncDispose]() };
  }

  test('survive a data path killed before the server had any of them', { timeout: 60_000 }, async () => {
    await using setup = await mountExported();
    await using user = useFiles();
    const path = setup.mount.on('file');
    const file = await user.open(path);
    await ganesha.server.freeze();
    try {
      // No write waits for the server.
      for (const { offset, size, letter } of pieces) expect(await user.write(file, offset, size, letter)).toBe('ok');
      await setup.mounts.killDataPath();
      await setup.mounts.killDataPath();
    } finally {
      ganesha.server.thaw();
    }
    // No close and no fsync.
    const { stdout } = await run('cat', [path], { encoding: 'buffer', maxBuffer: 2 ** 24, timeout: 30_000 });
    expect(stdout.equals(expectedContent())).toBe(true);
    expect(readFileSync(join(setup.folder, 'file')).equals(expectedContent())).toBe(true);
    expect([await user.sync(file), await user.close(file)]).toEqual(['ok', 'ok']);
    await run('umount', [setup.mount.at]);
  });

  test('are already on the server with `sync`, also after the data path was killed', { timeout: 60_000 }, async () => {
    await using setup = await mountExported({ version: 3, sync: true, checks: 'kernel' });
    await using user = useFiles();
    const file = await user.open(setup.mount.on('file'));
    const onServer = (): string => readFileSync(join(setup.folder, 'file'), 'latin1');
    async function writeWhileFrozen(offset: number, letter: string): Promise<void> {
      let isAnswered = false;
      await ganesha.server.freeze();
      const writing = user.write(file, offset, 5, letter).finally(() => {
        isAnswered = true;
      });
      try {
        // Without sync, the write is answered within a few ms.
        await sleep(1_000);
        expect(isAnswered).toBe(false);
      } finally {
        ganesha.server.thaw();
      }
      expect(await writing).toBe('ok');
    }
    await writeWhileFrozen(0, 'a');
    expect(onServer()).toBe('aaaaa');
    await setup.mounts.killDataPath();
    await writeWhileFrozen(5, 'b');
    expect(onServer()).toBe('aaaaabbbbb');
    expect(await user.close(file)).toBe('ok');
    await run('umount', [setup.mount.at]);
  });

  test('survive a killed data path and a killed server', { timeout: 60_000 }, async () => {
    await using setup = await mountExported();
    await using user = useFiles();
    const file = await user.open(setup.mount.on('file'));
    for (const { offset, size, letter } of pieces.slice(0, 4)) await user.write(file, offset, size, letter);
    // The server's verifier is the second of its start.
    await sleep(1_100);
    await ganesha.server.kill();
    for (const { offset, size, letter } of pieces.slice(4)) await user.write(file, offset, size, letter);
    await setup.mounts.killDataPath();
    await ganesha.server.restart();
    expect(await user.sync(file)).toBe('ok');
    expect(readFileSync(join(setup.folder, 'file')).equals(expectedContent())).toBe(true);
    await run('umount', [setup.mount.at]).catch(() => undefined);
  });

  test('are complete and in order when the server is killed again and again', {
    timeout: 90_000,
  }, async () => {
    await using setup = await mountExported();
    // Each round rewrites the whole file in pieces of another size, until told to stop.
    const script = `
      import os, select, sys, hashlib
      file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
      round = 0
      while not select.select([sys.stdin], [], [], 0)[0]:
          round += 1
          data = os.urandom(4000000)
          step = 20000 * (round % 12 + 1)
          for i in range(0, len(data), step): os.pwrite(file, data[i:i + step], i)
          if round % 4 == 3: os.fsync(file)
      print(hashlib.sha256(data).hexdigest())
      os.close(file)`;
    const working = run('python3', ['-c', script.replaceAll('\n      ', '\n'), setup.mount.on('file')], {
      timeout: 80_000,
    });
    for (let i = 0; i < 4; i++) {
      // The server's verifier is the second of its start.
      await sleep(1_100);
      await ganesha.server.restart();
    }
    working.child.stdin?.end('\n');
    const { stdout: digest } = await working;
    const { stdout } = await run('sha256sum', [join(setup.folder, 'file')]);
    expect(stdout.slice(0, 64)).toBe(digest.trim());
    await run('umount', [setup.mount.at]);
  });

  test('that exceed the memory make writers wait, without an error', { timeout: 90_000 }, async () => {
    await using setup = await mountExported();
    // Each write needs a slot, and there are fewer slots.
    const script = `
      import os, sys, threading
      data = b'x' * 131072
      files = [os.open('%s/%d' % (sys.argv[1], i), os.O_CREAT | os.O_RDWR) for i in range(300)]
      print('open', flush=True)
      sys.stdin.readline()
      failed = []
      def write(file):
          try: os.pwrite(file, data, 0)
          except OSError as error: failed.append(error)
      threads = [threading.Thread(target=write, args=(file,)) for file in files]
      for thread in threads: thread.start()
      for thread in threads: thread.join()
      for file in files: os.close(file)
      print(failed)`;
    const child = execFile('python3', ['-c', script.replaceAll('\n      ', '\n'), setup.mount.at], { timeout: 80_000 });
    let output = '';
    child.stdout?.on('data', (text: string) => {
      output += text;
    });
    await expect.poll(() => output, { timeout: 20_000 }).toContain('open');
    await ganesha.server.freeze();
    try {
      child.stdin?.write('\n');
      // As many are answered as the budget allows; the others fill the memory at once.
      await expect
        .poll(() => setup.mount.waiting(), { timeout: 20_000 })
        .toBe(300 - maxUnwrittenBytesPerMount / mebibyte);
      await sleep(1_000);
    } finally {
      ganesha.server.thaw();
    }
    await expect.poll(() => output, { timeout: 60_000 }).toContain('[]');
    for (let i = 0; i < 300; i++)
      expect(readFileSync(join(setup.folder, `${i}`)).equals(Buffer.alloc(131_072, 'x'))).toBe(true);
    await run('umount', [setup.mount.at]);
  });

  test('that do not fit are reported by write, fsync or close, and space is free again afterwards', {
    timeout: 60_000,
  }, async () => {
    await using exported = await mountSmall();
    const { mount } = exported;
    await using user = useFiles();
    const [file, other] = [await user.open(mount.on('file')), await user.open(mount.on('file'))];
    const write = (i: number): Promise<string> => user.write(file, i * mebibyte, mebibyte, 'x');
    const results: string[] = [];
    for (let i = 0; i < 8; i++) results.push(await write(i));
    results.push(await user.sync(file));
    expect(results).toContain('ENOSPC');
    expect(results.slice(0, 3)).toEqual(['ok', 'ok', 'ok']);
    expect(await user.sync(file)).toBe('ok');
    expect([await user.close(other), await user.close(file)]).toEqual(['ENOSPC', 'ok']);
    const small = await user.open(mount.on('small'));
    expect([await user.write(small, 0, mebibyte, 'x'), await user.close(small)]).toEqual(['ok', 'ENOSPC']);
    await run('rm', [mount.on('file')]);
    const again = await user.open(mount.on('again'));
    expect([await user.write(again, 0, mebibyte, 'x'), await user.close(again)]).toEqual(['ok', 'ok']);
    await run('umount', [mount.at]);
  });
});

/** Uncommitted data are in memory only, which `restart` clears. */
function withVolatileMemory(
  nfs: NfsClient,
  serverCalls: string[],
): NfsClient & { restart(): void; disk: Promise<void> } {
  let verifier = 1n;
  let memory: (readonly [Parameters<NfsClient['write']>[0], number, Buffer])[] = [];
  let putting = Promise.resolve();
  const put = (): Promise<void> => {
    putting = putting.then(async () => {
      for (const [handle, offset, data] of memory.splice(0)) await nfs.write(handle, offset, data, stability.fileSync);
    });
    return putting;
  };
  const fixture = {
    ...nfs,
    disk: Promise.resolve(),
    restart: () => {
      verifier++;
      memory = [];
    },
    write: async (handle, offset, data, stable, options) => {
      serverCalls.push(`write ${offset}+${data.length} ${stable === stability.fileSync ? 'stable' : 'unstable'}`);
      if (stable === stability.unstable) memory.push([handle, offset, Buffer.from(data)]);
      else await nfs.write(handle, offset, data, stable, options);
      return { count: data.length, committed: stable, verifier };
    },
    commit: async () => {
      serverCalls.push('commit');
      await fixture.disk;
      await put();
      return { verifier };
    },
    // Reads return answered writes, committed or not.
    read: async (...args) => {
      await put();
      return await nfs.read(...args);
    },
  } satisfies NfsClient & { disk: Promise<void>; restart(): void };
  return fixture;
}

describe.skipIf(lacks('fuse', 'ganesha', 'python3'))('a server that restarts and loses uncommitted data', () => {
  const exported = exportedByGanesha();

  async function mountRestartingServer() {
    const scratch = createScratchFolder();
    const serverCalls: string[] = [];
    const nfs = withVolatileMemory(exported.nfs, serverCalls);
    const mount = await mountNfs(scratch.folder, { nfs, root: exported.directory });
    const user = useFiles();
    return {
      nfs,
      serverCalls,
      user,
      mount,
      path: (name: string) => join(mount.at, name),
      [Symbol.asyncDispose]: async () => {
        await user[Symbol.asyncDispose]();
        await mount[Symbol.asyncDispose]();
        scratch[Symbol.dispose]();
      },
    };
  }

  test('has all data in the end', async () => {
    await using setup = await mountRestartingServer();
    const file = await setup.user.open(setup.path('file'));
    for (const { offset, size, letter } of pieces) {
      expect(await setup.user.write(file, offset, size, letter)).toBe('ok');
      setup.nfs.restart();
    }
    expect(await setup.user.close(file)).toBe('ok');
    expect(readFileSync(exported.on('file')).equals(expectedContent())).toBe(true);
    expect(setup.mount.faults).toEqual([]);
  });

  test('does not get back data truncated meanwhile', async () => {
    await using setup = await mountRestartingServer();
    const file = await setup.user.open(setup.path('file'));
    await setup.user.write(file, 0, 100_000, 'a');
    await setup.user.write(file, 100_000, 100_000, 'b');
    expect(await setup.user.truncate(file, 10)).toBe('ok');
    setup.nfs.restart();
    expect(await setup.user.close(file)).toBe('ok');
    expect(readFileSync(exported.on('file'), 'utf8')).toBe('a'.repeat(10));
  });

  test('is asked to commit when memory is short', async () => {
    await using setup = await mountRestartingServer();
    const file = await setup.user.open(setup.path('file'));
    // Each write holds the memory of one request, and the mount has memory for fewer requests.
    for (let i = 0; i < 200; i++) expect(await setup.user.write(file, i * 4096, 10, 'x')).toBe('ok');
    expect(setup.serverCalls).toContain('commit');
    expect(await setup.user.close(file)).toBe('ok');
  });

  test('is read from only when it has all data again', async () => {
    await using setup = await mountRestartingServer();
    const file = await setup.user.open(setup.path('file'));
    await setup.user.write(file, 0, 102_400, 'a');
    await setup.user.write(file, 102_400, 102_400, 'b');
    await expect.poll(() => setup.serverCalls.length).toBe(2);
    setup.nfs.restart();
    const { promise, resolve } = Promise.withResolvers<void>();
    setup.nfs.disk = promise;
    setup.mount.behind.revalidate();
    // Not from the kernel's cache.
    const dd = ['iflag=direct', 'bs=204800', 'count=1', `if=${setup.path('file')}`];
    const reading = run('dd', dd, { encoding: 'utf8', maxBuffer: 2 ** 20 });
    expect(await Promise.race([reading, sleep(500, 'waits')])).toBe('waits');
    resolve();
    const { stdout } = await reading;
    expect(stdout).toBe('a'.repeat(102_400) + 'b'.repeat(102_400));
    await setup.user.close(file);
  });
});

describe.skipIf(lacks('fuse', 'ganesha', 'python3'))('the calls to the server for a workload', () => {
  const exported = exportedByGanesha();

  test.each<readonly [string, readonly string[] | 'sync', readonly number[], readonly string[]]>([
    ['a small file', [], [4096], ['write 0+4096 stable']],
    ['a file of two writes', [], [100, 100], ['write 0+100 unstable', 'write 100+100 unstable', 'commit']],
    ['O_SYNC', ['O_SYNC'], [100, 100], ['write 0+100 stable', 'write 100+100 stable']],
    ['O_DSYNC', ['O_DSYNC'], [100], ['write 0+100 stable']],
    ['O_DIRECT', ['O_DIRECT'], [4096, 4096], ['write 0+4096 stable', 'write 4096+4096 stable']],
    ['a store with sync', 'sync', [100, 100], ['write 0+100 stable', 'write 100+100 stable']],
  ])('match the expected sequence for %s', async (_, how, sizes, expected) => {
    const flags = how === 'sync' ? [] : how;
    using scratch = createScratchFolder();
    const serverCalls: string[] = [];
    const on = { nfs: withVolatileMemory(exported.nfs, serverCalls), root: exported.directory };
    await using mount = await mountNfs(scratch.folder, on, { sync: how === 'sync' }, clockWithoutSendDelay());
    await using user = useFiles();
    const file = await user.open(join(mount.at, 'file'), 'O_CREAT', 'O_RDWR', ...flags);
    let offset = 0;
    for (const size of sizes) {
      await user.write(file, offset, size, 'x');
      // A committed copy exists now.
      if (how.length > 0) expect(readFileSync(exported.on('file'))).toHaveLength(offset + size);
      offset += size;
    }
    await user.close(file);
    expect(serverCalls).toEqual(expected);
    expect(mount.faults).toEqual([]);
  });
});

/** Lengthens the delay of small writes (30 ms), so that the close always comes first. */
function clockWithoutSendDelay(): Clock {
  const real = systemClock();
  return { ...real, after: (ms, then) => real.after(ms === 30 ? 60_000 : ms, then) };
}
