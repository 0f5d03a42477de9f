import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chownSync, closeSync, constants, mkdirSync, openSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { createKeeperGround, eventually, type KeeperGround } from '#testing/keeper/keeper-process.ts';
import type { KeeperClient } from './agent.ts';
import type { KeeperState } from './protocol.ts';

const run = promisify(execFile);
const program = join(import.meta.dirname, '..', 'testing', 'keeper', 'fuse-program.ts');
const nobody = 65_534;
const withoutRights = ['setpriv', `--reuid=${nobody}`, `--regid=${nobody}`, '--clear-groups', '--no-new-privs'];

describe.skipIf(needs('fuse', 'root'))('a real mount, kept by processes without any rights', () => {
  let ground: KeeperGround;
  let at: string;

  beforeEach(async () => {
    ground = createKeeperGround();
    chownSync(ground.folder, nobody, nobody);
    at = join(ground.folder, 'mnt');
    mkdirSync(at);
  });
  afterEach(async () => {
    await run('umount', ['--lazy', at]).catch(() => undefined);
    await ground[Symbol.asyncDispose]();
  });

  /** As an agent does it: nothing but the mount itself needs rights. */
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

  /** In a process of its own: this one must not wait for a mount. */
  const whoServes = async (): Promise<number> =>
    Number((await run('cat', [join(at, 'who')], { timeout: 20_000 })).stdout);
  const whole = (client: KeeperClient): Promise<KeeperState> =>
    eventually(
      () => client.status(ground.signal),
      ({ doing, standby }) => doing === 'serving' && standby !== null,
    );
  const statusOf = (pid: number): string => readFileSync(`/proc/${pid}/status`, 'utf8');

  test('outlives data paths that die, upgrades, and its keeper', async () => {
    const keeper = await ground.startKeeper({ program, enter: withoutRights });
    const client = ground.client(undefined, nobody);
    await mount(client);
    const before = await whole(client);
    expect(await whoServes()).toBe(before.active?.pid);
    for (const pid of [keeper.pid, before.active?.pid ?? 0]) {
      expect(statusOf(pid)).toMatch(/^Uid:\t65534\t65534\t65534/m);
      // Nobody of the same user may look into it.
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
});
