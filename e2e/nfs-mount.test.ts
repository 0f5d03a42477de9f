import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { cutNetwork } from '#testing/cut-network.ts';
import { ganeshaFolders, portsOf } from '#testing/ganesha-folders.ts';
import { makeFarNetwork } from '#testing/network-namespaces.ts';
import { suspend } from '#testing/suspend.ts';
import {
  createServerFolders,
  dataPath,
  followEvents,
  isStowageProcess,
  keeperPids,
  killKeepers,
  mountsIn,
  pollOptions,
  runCli,
  type ServerFolders,
  startTestServer,
  startWriter,
  waitUntilServing,
} from './nfs-mount-fixture.ts';
import type { Stowage } from './stowage.ts';

const run = promisify(execFile);

interface MountedVolume extends ServerFolders {
  readonly server: Stowage;
  readonly mountPoint: string;
}

async function mountVolumeOf(store: string): Promise<MountedVolume> {
  const folders = await createServerFolders();
  const server = await startTestServer(folders);
  await runCli(server, 'store', 'add', 'silver', store);
  await runCli(server, 'volume', 'create', 'silver/photos');
  const mountPoint = join(folders.top, 'mnt');
  await runCli(server, 'mount', 'silver/photos', mountPoint);
  return { ...folders, server, mountPoint };
}

/** While the NFS server can't be reached, every command is answered. Afterwards everything works again. */
async function expectNothingBlocked(
  { top, server, mountPoint: at }: MountedVolume,
  blockServer: () => Promise<AsyncDisposable>,
): Promise<void> {
  const app = startWriter(join(at, 'log'));
  await expect.poll(() => app.count(), pollOptions).toBeGreaterThan(3);
  await runCli(server, 'volume', 'create', 'silver/idle');
  const idle = join(top, 'idle');
  await runCli(server, 'mount', 'silver/idle', idle);
  const runInTime = async (...args: string[]) => {
    const since = performance.now();
    const finished = await server.cli(...args);
    expect(performance.now() - since, args.join(' ')).toBeLessThan(20_000);
    return finished;
  };
  {
    await using _silent = await blockServer();
    await delay(1_500);
    for (const args of [['status'], ['mounts'], ['volume', 'list'], ['client', 'status'], ['unmount', idle]])
      expect(await runInTime(...args), args.join(' ')).toMatchObject({ status: 0 });
    const refused = await runInTime('unmount', at);
    expect(refused.status).not.toBe(0);
    expect(refused.stderr).toMatch(/in use|does not accept/);
    expect(await runInTime('unmount', at, '--force')).toMatchObject({ status: 0 });
    expect(await app.ended).toMatch(/ECONNABORTED|ENOTCONN|EIO|ESHUTDOWN|EINTR/);
    expect(mountsIn(top)).toEqual([]);
  }
  await expect
    .poll(async () => (await server.cli('volume', 'show', 'silver/photos')).stdout, {
      timeout: 60_000,
      interval: 500,
    })
    .toMatch(/^hosts +-$/m);
}

describe.skipIf(lacks('linux', 'root', 'mount', 'fuse', 'ganesha'))('a mounted volume of an NFS store', () => {
  const ganesha = ganeshaFolders('nfs-mount');

  async function mountVolume(uriOptions = ''): Promise<MountedVolume & { readonly exported: string }> {
    const { folder, uri } = ganesha.fresh();
    const { port, mountport } = portsOf(ganesha.server);
    const mounted = await mountVolumeOf(`${uri}?port=${port}&mountport=${mountport}${uriOptions}`);
    return { ...mounted, exported: join(folder, 'photos') };
  }

  test('is served by a process without capabilities, and leaves nothing behind', { timeout: 60_000 }, async () => {
    const { top, server, mountPoint: at, exported } = await mountVolume();
    await run('sh', ['-c', 'echo hello > "$1/file"', 'sh', at]);
    expect(await readFile(join(exported, 'file'), 'utf8')).toBe('hello\n');
    const shared = (await readFile('/proc/self/mountinfo', 'utf8'))
      .split('\n')
      .filter((line) => line.includes(` ${top}/`));
    expect(shared).toHaveLength(2);
    for (const line of shared) expect(line).toMatch(/ shared:\d+ /);
    const device = shared[0]?.split(' ')[2];
    expect(await readFile(`/sys/class/bdi/${device}/read_ahead_kb`, 'utf8')).toBe('4096\n');
    const { pid } = await waitUntilServing(server);
    const status = await readFile(`/proc/${pid}/status`, 'utf8');
    expect(status).toMatch(/^Uid:\t(6[1-5]\d{3})\t\1\t\1\t\1$/m);
    expect(status).toMatch(/^CapEff:\t0{16}$/m);
    expect(status).toMatch(/^CapBnd:\t0{16}$/m);
    expect(status).toMatch(/^NoNewPrivs:\t1$/m);
    expect(status).toMatch(/^Groups:\t\s*$/m);
    expect(await runCli(server, 'volume', 'show', 'silver/photos')).toContain(`path ${at}`);
    expect((await server.cli('volume', 'delete', 'silver/photos')).stderr).toContain('it is used by');
    await runCli(server, 'unmount', at);
    expect(mountsIn(top)).toEqual([]);
    expect(await dataPath(server)).toMatchObject({ mounts: 0 });
    expect(await runCli(server, 'volume', 'show', 'silver/photos')).toMatch(/^hosts +-$/m);
    await runCli(server, 'volume', 'delete', 'silver/photos');
    const keepers = keeperPids(top);
    expect(keepers.length).toBeGreaterThan(0);
    await server.stop();
    await expect.poll(() => keepers.filter(isStowageProcess), pollOptions).toEqual([]);
  });

  test('lets an application keep writing while any of its processes is killed or replaced', {
    timeout: 90_000,
  }, async () => {
    const { server, mountPoint: at, exported, ...folders } = await mountVolume();
    const { top } = folders;
    const app = startWriter(join(at, 'log'));
    const keepsWriting = async (): Promise<void> => {
      const before = app.count();
      await expect.poll(() => app.count(), pollOptions).toBeGreaterThan(before + 10);
    };
    await keepsWriting();
    for (let round = 1; round <= 3; round++) {
      const { pid, takeovers } = await waitUntilServing(server);
      process.kill(pid, 'SIGKILL');
      await expect.poll(async () => (await dataPath(server))?.takeovers, pollOptions).toBeGreaterThan(takeovers);
      await keepsWriting();
      const output = await runCli(server, 'client', 'upgrade');
      expect(output).toContain('replaced 1 data path');
      expect((await waitUntilServing(server)).pid).not.toBe(pid);
      await keepsWriting();
    }
    // The signal kills the server, not its data path. The next server finds the mount and the data path unchanged.
    server.signal('SIGKILL');
    await server.ended();
    await keepsWriting();
    const next = await startTestServer(folders);
    expect(await dataPath(next)).toMatchObject({ mounts: 1 });
    await keepsWriting();
    expect((await next.cli('unmount', at)).stderr).toContain('it is in use');
    app.stop();
    expect(await app.ended).toBe('');
    const lines = (await readFile(join(exported, 'log'), 'utf8')).trim().split('\n').map(Number);
    expect(lines).toEqual(lines.map((_, i) => i + 1));
    await runCli(next, 'unmount', at);
    expect(mountsIn(top)).toEqual([]);
  });

  test('is mounted again at the same path after its keeper and data path were killed together, and an Event reports that', {
    timeout: 60_000,
  }, async () => {
    const { top, socket, server, mountPoint: at } = await mountVolume();
    await run('sh', ['-c', 'echo kept > "$1/file"', 'sh', at]);
    await waitUntilServing(server);
    const events = followEvents(socket);
    await expect.poll(events, pollOptions).toContain('hello');
    killKeepers(top);
    const killedAt = performance.now();
    await expect.poll(() => server.output(), { timeout: 20_000, interval: 20 }).toContain('a keeper is gone');
    // The server noticed the end of the keeper at once: the periodic check runs every ten seconds.
    expect(performance.now() - killedAt).toBeLessThan(8_000);
    const readFileOrError = async (): Promise<string> =>
      (await run('cat', [join(at, 'file')], { timeout: 5_000 }).catch(({ stderr }) => ({ stdout: String(stderr) })))
        .stdout;
    await expect.poll(readFileOrError, pollOptions).toBe('kept\n');
    await expect.poll(events, pollOptions).toContain('mount.repaired');
    await runCli(server, 'unmount', at);
    expect(mountsIn(top)).toEqual([]);
  });

  test('blocks no process forever if its keeper hangs while its data path is killed, and an Event reports that', {
    timeout: 90_000,
  }, async () => {
    const { top, socket, server, mountPoint: at } = await mountVolume();
    await run('sh', ['-c', 'echo kept > "$1/file"', 'sh', at]);
    const { pid } = await waitUntilServing(server);
    const events = followEvents(socket);
    await expect.poll(events, pollOptions).toContain('hello');
    for (const keeper of keeperPids(top)) if (keeper !== pid) await suspend(keeper);
    process.kill(pid, 'SIGKILL');
    const blockedRead = run('cat', [join(at, 'file')], { timeout: 60_000 }).catch(({ stderr }) => ({
      stdout: String(stderr),
    }));
    for (const args of [
      ['client', 'status'],
      ['volume', 'list'],
      ['unmount', at],
    ]) {
      const since = performance.now();
      await server.cli(...args);
      expect(performance.now() - since).toBeLessThan(20_000);
    }
    expect((await blockedRead).stdout).toMatch(/abort|not connected/);
    await expect.poll(events, { timeout: 20_000 }).toContain('keeper.ended');
    await expect.poll(events, { timeout: 20_000 }).toContain('mount.repaired');
    expect((await run('cat', [join(at, 'file')], { timeout: 20_000 })).stdout).toBe('kept\n');
    await runCli(server, 'unmount', at);
    expect(mountsIn(top)).toEqual([]);
  });

  test('keeps acknowledged writes when it is unmounted, except by force', { timeout: 60_000 }, async () => {
    const { server, mountPoint: at, exported } = await mountVolume('&hard');
    // SIGKILL, so that the program can't close the file.
    const program = `
      const { openSync, writeSync } = require('node:fs');
      const fd = openSync(process.argv[1], 'w');
      console.log('open');
      process.stdin.once('data', () => console.log('written', writeSync(fd, Buffer.alloc(300_000, 'x'))));`;
    const child = spawn(process.execPath, ['-e', program, join(at, 'file')], { stdio: ['pipe', 'pipe', 'ignore'] });
    const expectOutput = async (what: string): Promise<void> =>
      expect(String(await once(child.stdout, 'data'))).toBe(what);
    await expectOutput('open\n');
    await ganesha.server.freeze();
    try {
      child.stdin.write('go on');
      await expectOutput('written 300000\n');
      child.kill('SIGKILL');
      await once(child, 'exit');
      for (let round = 1; round <= 2; round++)
        expect((await server.cli('unmount', at)).stderr).toContain(
          'a file has unwritten data that the server does not accept',
        );
      expect(mountsIn(join(at, '..'))).toContain(at);
    } finally {
      ganesha.server.thaw();
    }
    await runCli(server, 'unmount', at);
    expect((await readFile(join(exported, 'file'))).length).toBe(300_000);
  });

  test('delays no command while its server hangs, and a forced unmount ends blocked processes', {
    timeout: 150_000,
  }, async () => {
    await expectNothingBlocked(await mountVolume('&hard'), async () => {
      await ganesha.server.freeze();
      return { [Symbol.asyncDispose]: async () => ganesha.server.thaw() };
    });
  });

  test('delays no command while its server is killed', { timeout: 150_000 }, async () => {
    await expectNothingBlocked(await mountVolume('&hard'), async () => {
      await ganesha.server.kill();
      return { [Symbol.asyncDispose]: () => ganesha.server.restart() };
    });
  });
});

describe.skipIf(lacks('linux', 'root', 'mount', 'fuse', 'netns', 'firewall'))(
  'a mounted volume behind a network that drops all packets',
  () => {
    test('delays no command, and a forced unmount ends blocked processes', { timeout: 150_000 }, async () => {
      await using far = await makeFarNetwork();
      const ports = `port=${far.port}&mountport=${far.port}`;
      const mounted = await mountVolumeOf(`nfs://${far.host}/export?${ports}&network=netns:${far.name}&hard`);
      await expectNothingBlocked(mounted, () => cutNetwork(far, 'lose'));
    });
  },
);
