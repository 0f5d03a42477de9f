import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Source } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { guard } from '#testing/fuse-mount.ts';
import { createGround } from '#testing/ground.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { createNfsClient } from '../kinds/nfs.ts';
import { createLinuxMounter } from '../mounter/linux.ts';
import { createLook } from '../mounter/look.ts';
import { createTableReader } from '../mounter/mountinfo.ts';
import { createRun } from '../mounter/run.ts';
import { createKeepers } from './keepers.ts';

const run = promisify(execFile);
const clock = systemClock();
const unending = new AbortController().signal;

describe.skipIf(needs('root', 'fuse', 'mount', 'ganesha'))('keepers and their mounts', () => {
  const it = exportedByGanesha();

  const source = (): Source & { readonly kind: 'nfs' } => ({
    ...{ kind: 'nfs', hosts: [it.server.host], path: it.folder },
    way: {
      ...{ client: 'built-in', addresses: [it.server.host], port: it.server.nfsPort, mountPort: undefined },
      ...{ root: Buffer.from(it.directory).toString('base64'), connections: 1, sourcePorts: undefined, tls: undefined },
      ...{ network: undefined, squash: 'none', uid: 0, gid: 0, softMs: undefined, maxRead: 65_536, maxWrite: 65_536 },
      ...{ locks: 'node', readOnly: false, quota: undefined },
    },
  });

  /** As `stowage up` puts them together. What is doubted is counted. */
  function agent(stuckMs: number) {
    const ground = createGround();
    const folder = (name: string): string => join(ground.folder, name);
    for (const name of ['keepers', 'mounts']) mkdirSync(folder(name));
    const { scope } = ground;
    const doubted = { times: 0 };
    const keepers = createKeepers({
      ...{ clock, log: scope.log, folder: folder('keepers'), version: 'test', stuckMs },
      doubted: () => void doubted.times++,
    });
    const mounts = createRun(clock, undefined, ground.folder);
    const mounter = createLinuxMounter({
      ...{ clock, run: mounts, owner: ground.folder, forbidden: () => [], storeRoots: () => [] },
    });
    const client = createNfsClient({
      ...{ mounter, run: mounts, clock, keepers, instance: 'test', look: createLook(clock) },
      readTable: createTableReader(),
    });
    const at = join(folder('mounts'), newVolumeId());
    const guarding = guard(at);
    const state = async (): Promise<KeeperState | undefined> => (await keepers.status(unending))[0]?.state;
    onTestFinished(async () => {
      const { active, standby } = (await state()) ?? {};
      for (const one of [active, standby]) if (one?.pid !== undefined) process.kill(one.pid, 'SIGCONT');
      await run('umount', ['--force', '--lazy', at]).catch(() => undefined);
      guarding[Symbol.dispose]();
      await eventually(state, (found) => found?.mounts === 0);
      await keepers.endIdle(unending);
      await keepers[Symbol.asyncDispose]();
      ground[Symbol.dispose]();
    });
    return { client, at, state, doubted, scope };
  }

  const whole = (state: KeeperState | undefined): boolean => state?.active?.ready === true && state.standby !== null;
  const ends = (child: ChildProcess): Promise<unknown> =>
    child.exitCode === null && child.signalCode === null ? once(child, 'exit') : Promise.resolve();

  test('a mount that is there stays, whatever its store says by now', { timeout: 60_000 }, async () => {
    const { client, at, state, scope } = agent(10_000);
    writeFileSync(it.on('file'), 'data');
    await client.stage(source(), at, scope);
    const file = await open(join(at, 'file'), 'r+');
    onTestFinished(() => file.close());
    const { way, ...rest } = source();
    const changed = { ...rest, way: { ...way, sourcePorts: 'privileged' as const } };
    await client.stage(changed, at, scope);
    expect(await client.dead?.([{ source: changed, at }], scope)).toEqual([]);
    await file.write('DATA', 0);
    await client.flush?.(changed, at, scope);
    expect(readFileSync(it.on('file'), 'utf8')).toBe('DATA');
    expect((await state())?.mounts).toBe(1);
  });

  test('mounts that nobody serves are ended when the time is up, and made anew', { timeout: 60_000 }, async () => {
    const { client, at, state, doubted, scope } = agent(1_000);
    writeFileSync(it.on('file'), 'data');
    await client.stage(source(), at, scope);
    const { active, standby } = (await eventually(state, whole)) ?? expect.fail();
    // The next one stands still before it has begun to serve. The keeper takes five seconds to find that out.
    process.kill(standby?.pid ?? 0, 'SIGSTOP');
    process.kill(active?.pid ?? 0, 'SIGKILL');
    await eventually(state, (found) => found?.active?.pid === standby?.pid);
    const waits = spawn('cat', [join(at, 'file')], { stdio: ['ignore', 'pipe', 'pipe'] });
    const said = once(waits.stderr, 'data');
    expect(await client.dead?.([{ source: source(), at }], scope)).toEqual([]);
    await eventually(
      () => doubted.times,
      (times) => times === 1,
    );
    expect(await client.dead?.([{ source: source(), at }], scope)).toEqual([at]);
    expect(waits.exitCode).toBeNull();
    const again = client.stage(source(), at, scope);
    expect(String(await said)).toMatch(/abort|not connected/);
    await ends(waits);
    await again;
    expect((await run('cat', [join(at, 'file')], { timeout: 20_000 })).stdout).toBe('data');
    await eventually(state, whole);
    expect(await client.dead?.([{ source: source(), at }], scope)).toEqual([]);
  });

  test('mounts of a data path that begins to serve in time are left alone', { timeout: 60_000 }, async () => {
    const { client, at, state, doubted, scope } = agent(10_000);
    writeFileSync(it.on('file'), 'data');
    await client.stage(source(), at, scope);
    const { active, standby } = (await eventually(state, whole)) ?? expect.fail();
    process.kill(standby?.pid ?? 0, 'SIGSTOP');
    process.kill(active?.pid ?? 0, 'SIGKILL');
    expect((await run('cat', [join(at, 'file')], { timeout: 20_000 })).stdout).toBe('data');
    await eventually(state, whole);
    expect([doubted.times, await client.dead?.([{ source: source(), at }], scope)]).toEqual([0, []]);
  });
});
