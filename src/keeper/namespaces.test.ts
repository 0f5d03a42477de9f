import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
} from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import { silentLog } from '#base/log.ts';
import { lacks } from '#testbed/lacks.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { createKeeperFixture, eventually, type KeeperFixture } from '#testing/keeper/keeper-process.ts';
import { suspend } from '#testing/suspend.ts';
import type { KeeperClient } from './keeper-client.ts';
import { listenForPeers } from './listening-socket.ts';
import type { KeeperState } from './protocol.ts';
import { peerCredentials } from './system-calls.ts';

const run = promisify(execFile);
const program = join(import.meta.dirname, '..', 'testing', 'keeper', 'fuse-program.ts');

/** Starts a keeper for each input line and prints the result. */
const starter = `
  const [{ startKeeper }, { systemClock }] = await Promise.all(process.argv.slice(1, 3).map((each) => import(each)));
  const options = { clock: systemClock(), ...JSON.parse(process.argv[3]) };
  const { createInterface } = await import('node:readline');
  for await (const _ of createInterface(process.stdin)) {
    const said = await startKeeper(options, new AbortController().signal).then(
      ({ pid }) => ({ pid }),
      ({ reason, message }) => ({ reason, message }),
    );
    process.stdout.write(JSON.stringify(said) + '\\n');
  }`;

/** Like a container: it sees only its own processes and ends them all with its first one. */
interface Container extends AsyncDisposable {
  start(): Promise<{ readonly pid?: number; readonly reason?: string; readonly message?: string }>;
}

const childOf = (pid: number): string => {
  const file = `/proc/${pid}/task/${pid}/children`;
  return existsSync(file) ? readFileSync(file, 'utf8').trim() : 'none';
};

describe.skipIf(lacks('fuse', 'root'))('keepers in two containers', () => {
  let scratch: KeeperFixture;
  let mountPoint: string;
  let containers: readonly [Container, Container];

  function createContainer(): Container {
    const options = {
      socket: scratch.socket,
      program,
      log: join(scratch.folder, 'log'),
      enter: [],
      flags: [],
      env: { PATH: process.env['PATH'] ?? '', STOWAGE_TEST_FOLDER: scratch.folder },
    };
    const modules = [join(import.meta.dirname, 'start-keeper.ts'), join(import.meta.dirname, '..', 'base', 'clock.ts')];
    const node = [process.execPath, '--input-type=module', '-e', starter, ...modules, JSON.stringify(options)];
    const child = spawn('unshare', ['--pid', '--fork', ...slaveMounts, '--mount-proc', '--kill-child', ...node], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const ended = once(child, 'exit');
    const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
    return {
      start: async () => {
        child.stdin.write('\n');
        return JSON.parse(String((await lines.next()).value));
      },
      [Symbol.asyncDispose]: async () => {
        const first = childOf(child.pid ?? 0);
        child.kill('SIGKILL');
        await ended;
        // The kernel kills all others before the first process of a pid namespace is gone.
        await expect.poll(() => existsSync(`/proc/${first}`), { timeout: 20_000 }).toBe(false);
      },
    };
  }

  beforeEach(() => {
    scratch = createKeeperFixture();
    mountPoint = join(scratch.folder, 'mnt');
    mkdirSync(mountPoint);
    // Before anything is mounted: each has its own mount namespace.
    containers = [createContainer(), createContainer()];
  });
  afterEach(async () => {
    await run('umount', ['--force', '--lazy', mountPoint], { timeout: 10_000 }).catch(() => undefined);
    for (const each of containers) await each[Symbol.asyncDispose]();
    await scratch[Symbol.asyncDispose]();
  });

  async function mount(client: KeeperClient): Promise<void> {
    const fd = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
    const options = 'fd=3,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions';
    const child = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-test', mountPoint], {
      stdio: ['ignore', 'inherit', 'inherit', fd],
    });
    expect(await once(child, 'exit')).toEqual([0, null]);
    await client.adopt('m', {}, fd, scratch.signal);
    closeSync(fd);
  }

  /** In a separate process: this one must not block on a mount. Pids are those of its container. */
  const servingPid = async (): Promise<number> =>
    Number((await run('cat', [join(mountPoint, 'who')], { timeout: 20_000 })).stdout);
  const waitForStandby = (client: KeeperClient): Promise<KeeperState> =>
    eventually(
      () => client.status(scratch.signal),
      ({ doing, standby }) => doing === 'serving' && standby !== null,
    );
  /** The pid as seen from outside the containers. */
  const keeperPid = (): number => {
    const fd = connectTo(scratch.socket);
    const { pid } = peerCredentials(fd);
    closeSync(fd);
    return pid;
  };

  test('hand over to each other while the mount works', { timeout: 60_000 }, async () => {
    const [first, second] = containers;
    expect(await first.start()).toEqual({ pid: expect.any(Number) });
    const client = scratch.client();
    await mount(client);
    const before = await waitForStandby(client);
    const pidNamespace = readlinkSync(`/proc/${keeperPid()}/ns/pid`);

    expect(await second.start()).toEqual({ pid: expect.any(Number) });
    expect(readlinkSync(`/proc/${keeperPid()}/ns/pid`)).not.toBe(pidNamespace);
    const next = scratch.client();
    expect(await waitForStandby(next)).toMatchObject({ active: before.active, mounts: 1, deaths: 0, takeovers: 0 });
    expect(await servingPid()).toBe(before.active?.pid);

    await next.upgrade(program, scratch.signal);
    const after = await waitForStandby(next);
    expect(after).toMatchObject({ mounts: 1, deaths: 0, takeovers: 1 });
    expect(await servingPid()).toBe(after.active?.pid);
    await first[Symbol.asyncDispose]();
    expect(await servingPid()).toBe(after.active?.pid);
  });

  test('take over when the keeper whose data path serves ends', { timeout: 60_000 }, async () => {
    const [first, second] = containers;
    await first.start();
    const client = scratch.client();
    await mount(client);
    await waitForStandby(client);
    await second.start();
    const next = scratch.client();
    const { standby } = await waitForStandby(next);
    await first[Symbol.asyncDispose]();
    expect(await servingPid()).toBe(standby?.pid);
    expect(await waitForStandby(next)).toMatchObject({ takeovers: 1, deaths: 1 });
  });

  /** Translates a pid in a container to the pid outside. */
  function outerPid(pid: number | undefined, pidNamespace: string): number {
    const numbers = readdirSync('/proc').filter((name) => /^\d+$/.test(name));
    const matches = (number: string): boolean => {
      try {
        const inner = /^NSpid:\t\d+\t(\d+)$/m.exec(readFileSync(`/proc/${number}/status`, 'utf8'))?.[1];
        return Number(inner) === pid && readlinkSync(`/proc/${number}/ns/pid`) === pidNamespace;
      } catch {
        return false;
      }
    };
    return Number(numbers.find(matches) ?? expect.fail('it is not there'));
  }

  test('report a hanging data path in the other container, and replace it when it is gone', {
    timeout: 60_000,
  }, async () => {
    const [first, second] = containers;
    await first.start();
    const client = scratch.client();
    await mount(client);
    const before = await waitForStandby(client);
    const hanging = outerPid(before.active?.pid, readlinkSync(`/proc/${keeperPid()}/ns/pid`));
    await second.start();
    const next = scratch.client();
    await waitForStandby(next);
    await suspend(hanging);
    await expect(next.upgrade(program, scratch.signal)).rejects.toMatchObject({ reason: 'out-of-reach' });
    expect(scratch.log()).toContain('restart that container');
    process.kill(hanging, 'SIGCONT');
    const after = await waitForStandby(next);
    expect(after.takeovers).toBe(1);
    expect(await servingPid()).toBe(after.active?.pid);
  });

  test('report a live keeper that neither hands over nor can be killed, and leave it in charge', {
    timeout: 60_000,
  }, async () => {
    // This process is outside the container, where no process inside can kill it.
    using _ = listenForPeers({
      path: scratch.socket,
      clock: systemClock(),
      log: silentLog(),
      connected: (line) => line.close(),
    });
    expect(await containers[0].start()).toMatchObject({
      reason: 'out-of-reach',
      message: expect.stringContaining('another container'),
    });
    expect(scratch.log()).toContain('restart its container');
    expect(keeperPid()).toBe(process.pid);
  });
});
