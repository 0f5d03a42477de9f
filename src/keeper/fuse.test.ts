import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chownSync,
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  statSync,
} from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { createKeeperFixture, eventually, type KeeperFixture } from '#testing/keeper/keeper-process.ts';
import type { KeeperClient } from './keeper-client.ts';
import { hasMainThreadEnded, stuckThreads } from './killed-process.ts';
import type { KeeperState } from './protocol.ts';
import { isServed } from './serving-lock.ts';
import { openPidfd } from './system-calls.ts';

const run = promisify(execFile);
const program = join(import.meta.dirname, '..', 'testing', 'keeper', 'fuse-program.ts');
const nobody = 65_534;
const withoutRights = ['setpriv', `--reuid=${nobody}`, `--regid=${nobody}`, '--clear-groups', '--no-new-privs'];

describe.skipIf(lacks('fuse', 'root'))('a real mount held by unprivileged processes', () => {
  let scratch: KeeperFixture;
  let mountPoint: string;

  beforeEach(async () => {
    scratch = createKeeperFixture();
    chownSync(scratch.folder, nobody, nobody);
    mountPoint = join(scratch.folder, 'mnt');
    mkdirSync(mountPoint);
  });
  afterEach(async () => {
    // By force: a process that waits for an answer could not be killed otherwise.
    await run('umount', ['--force', '--lazy', mountPoint], { timeout: 10_000 }).catch(() => undefined);
    await scratch[Symbol.asyncDispose]();
  });

  /** Like an agent: only the mount itself needs privileges. */
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

  /** In a separate process: this one must not block on a mount. */
  const servingPid = async (): Promise<number> =>
    Number((await run('cat', [join(mountPoint, 'who')], { timeout: 20_000 })).stdout);
  const waitForStandby = (client: KeeperClient): Promise<KeeperState> =>
    eventually(
      () => client.status(scratch.signal),
      ({ doing, standby }) => doing === 'serving' && standby !== null,
    );
  /** Nothing else is safe to read of a process that may be dying. */
  const threadStates = (pid: number): readonly string[] =>
    readdirSync(`/proc/${pid}/task`).map((id) => {
      const stat = readFileSync(`/proc/${pid}/task/${id}/stat`, 'utf8');
      return stat.charAt(stat.lastIndexOf(')') + 2);
    });
  const statusOf = (pid: number): string => readFileSync(`/proc/${pid}/status`, 'utf8');

  test('survives dying data paths, upgrades and its keeper', async () => {
    const keeper = await scratch.startKeeper({ program, enter: withoutRights });
    const client = scratch.client(undefined, nobody);
    await mount(client);
    const before = await waitForStandby(client);
    expect(await servingPid()).toBe(before.active?.pid);
    for (const pid of [keeper.pid, before.active?.pid ?? 0]) {
      expect(statusOf(pid)).toMatch(/^Uid:\t65534\t65534\t65534/m);
      // Other processes of the same user may not inspect it.
      expect(statSync(`/proc/${pid}/fd`).uid).toBe(0);
      expect(statusOf(pid)).toMatch(/^CapEff:\t0+$/m);
    }

    process.kill(before.active?.pid ?? 0, 'SIGKILL');
    expect(await servingPid()).toBe(before.standby?.pid);

    await waitForStandby(client);
    await client.upgrade(program, scratch.signal);
    const upgraded = await waitForStandby(client);
    expect(await servingPid()).toBe(upgraded.active?.pid);
    expect(upgraded.active?.pid).not.toBe(before.standby?.pid);

    await scratch.startKeeper({ program, enter: withoutRights });
    expect(await keeper.ended).toBe(0);
    expect(await servingPid()).toBe(upgraded.active?.pid);

    const next = scratch.client(undefined, nobody);
    const after = await waitForStandby(next);
    process.kill(after.active?.pid ?? 0, 'SIGKILL');
    expect(await servingPid()).toBe(after.standby?.pid);
    await run('umount', [mountPoint]);
    await next.drop('m', scratch.signal);
    expect(await next.status(scratch.signal)).toMatchObject({ doing: 'idle', mounts: 0 });
  });

  test('is taken over from a killed data path that cannot exit before a request is answered', {
    timeout: 60_000,
  }, async () => {
    await scratch.startKeeper({ program, enter: withoutRights });
    const client = scratch.client(undefined, nobody);
    await mount(client);
    const { active, standby } = await waitForStandby(client);
    const pid = active?.pid ?? 0;
    expect(await servingPid()).toBe(pid);
    const pidfd = openPidfd(pid);
    onTestFinished(() => closeSync(pidfd));

    // mkdir holds the directory's lock until it is answered; a thread of the data path waits for that lock.
    const mkdirResult = run('mkdir', [join(mountPoint, 'made')]);
    mkdirResult.catch(() => undefined);
    await eventually(
      () => threadStates(pid),
      (all) => all.includes('D'),
    );
    expect(hasMainThreadEnded(pidfd)).toBe(false);
    expect(stuckThreads(pidfd)).toBeUndefined();

    process.kill(pid, 'SIGKILL');
    await eventually(
      () => client.status(scratch.signal),
      (state) => state.takeovers === 1,
    );
    await mkdirResult;
    expect(await servingPid()).toBe(standby?.pid);
    // Now it can exit; the next keeper must see that another data path serves.
    await eventually(
      () => existsSync(`/proc/${pid}`),
      (isThere) => !isThere,
    );
    await eventually(
      () => isServed(scratch.socket),
      (isSo) => isSo,
    );
    await run('umount', [mountPoint]);
  });
});
