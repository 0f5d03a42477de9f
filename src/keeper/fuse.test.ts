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
import { needs } from '#testbed/needs.ts';
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

describe.skipIf(needs('fuse', 'root'))('a real mount held by unprivileged processes', () => {
  let ground: KeeperFixture;
  let at: string;

  beforeEach(async () => {
    ground = createKeeperFixture();
    chownSync(ground.folder, nobody, nobody);
    at = join(ground.folder, 'mnt');
    mkdirSync(at);
  });
  afterEach(async () => {
    // By force: a process that waits for an answer could not be killed otherwise.
    await run('umount', ['--force', '--lazy', at], { timeout: 10_000 }).catch(() => undefined);
    await ground[Symbol.asyncDispose]();
  });

  /** Like an agent: only the mount itself needs privileges. */
  async function mount(client: KeeperClient): Promise<void> {
    const fd = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
    const options = 'fd=3,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions';
    const child = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-test', at], {
      stdio: ['ignore', 'inherit', 'inherit', fd],
    });
    expect(await once(child, 'exit')).toEqual([0, null]);
    await client.adopt('m', {}, fd, ground.signal);
    closeSync(fd);
  }

  /** In a separate process: this one must not block on a mount. */
  const whoServes = async (): Promise<number> =>
    Number((await run('cat', [join(at, 'who')], { timeout: 20_000 })).stdout);
  const whole = (client: KeeperClient): Promise<KeeperState> =>
    eventually(
      () => client.status(ground.signal),
      ({ doing, standby }) => doing === 'serving' && standby !== null,
    );
  /** Nothing else is safe to read of a process that may be dying. */
  const states = (pid: number): readonly string[] =>
    readdirSync(`/proc/${pid}/task`).map((id) => {
      const stat = readFileSync(`/proc/${pid}/task/${id}/stat`, 'utf8');
      return stat.charAt(stat.lastIndexOf(')') + 2);
    });
  const statusOf = (pid: number): string => readFileSync(`/proc/${pid}/status`, 'utf8');

  test('survives dying data paths, upgrades and its keeper', async () => {
    const keeper = await ground.startKeeper({ program, enter: withoutRights });
    const client = ground.client(undefined, nobody);
    await mount(client);
    const before = await whole(client);
    expect(await whoServes()).toBe(before.active?.pid);
    for (const pid of [keeper.pid, before.active?.pid ?? 0]) {
      expect(statusOf(pid)).toMatch(/^Uid:\t65534\t65534\t65534/m);
      // Other processes of the same user may not inspect it.
      expect(statSync(`/proc/${pid}/fd`).uid).toBe(0);
      expect(statusOf(pid)).toMatch(/^CapEff:\t0+$/m);
    }

    process.kill(before.active?.pid ?? 0, 'SIGKILL');
    expect(await whoServes()).toBe(before.standby?.pid);

    await whole(client);
    await client.upgrade(program, ground.signal);
    const upgraded = await whole(client);
    expect(await whoServes()).toBe(upgraded.active?.pid);
    expect(upgraded.active?.pid).not.toBe(before.standby?.pid);

    await ground.startKeeper({ program, enter: withoutRights });
    expect(await keeper.ended).toBe(0);
    expect(await whoServes()).toBe(upgraded.active?.pid);

    const next = ground.client(undefined, nobody);
    const after = await whole(next);
    process.kill(after.active?.pid ?? 0, 'SIGKILL');
    expect(await whoServes()).toBe(after.standby?.pid);
    await run('umount', [at]);
    await next.drop('m', ground.signal);
    expect(await next.status(ground.signal)).toMatchObject({ doing: 'idle', mounts: 0 });
  });

  test('is taken over from a killed data path that cannot exit before a request is answered', {
    timeout: 60_000,
  }, async () => {
    await ground.startKeeper({ program, enter: withoutRights });
    const client = ground.client(undefined, nobody);
    await mount(client);
    const { active, standby } = await whole(client);
    const pid = active?.pid ?? 0;
    expect(await whoServes()).toBe(pid);
    const pidfd = openPidfd(pid);
    onTestFinished(() => closeSync(pidfd));

    // mkdir holds the directory's lock until it is answered; a thread of the data path waits for that lock.
    const making = run('mkdir', [join(at, 'made')]);
    making.catch(() => undefined);
    await eventually(
      () => states(pid),
      (all) => all.includes('D'),
    );
    expect(hasMainThreadEnded(pidfd)).toBe(false);
    expect(stuckThreads(pidfd)).toBeUndefined();

    process.kill(pid, 'SIGKILL');
    await eventually(
      () => client.status(ground.signal),
      (state) => state.takeovers === 1,
    );
    await making;
    expect(await whoServes()).toBe(standby?.pid);
    // Now it can exit; the next keeper must see that another data path serves.
    await eventually(
      () => existsSync(`/proc/${pid}`),
      (isThere) => !isThere,
    );
    await eventually(
      () => isServed(ground.socket),
      (isSo) => isSo,
    );
    await run('umount', [at]);
  });
});
