import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import type { Source } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import { holdServingLock } from '#keeper/serving-lock.ts';
import { peerCredentials } from '#keeper/system-calls.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createSkippingClock } from '#testing/fakes/skipping-clock.ts';
import { startUnmountWatchdog } from '#testing/fuse-mount.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { createNfsClient } from '../kinds/nfs.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { createTableReader } from '../mounter/mountinfo.ts';
import { createPathAccess } from '../mounter/path-access.ts';
import { createRunProgram } from '../mounter/run-program.ts';
import type { AbandonedKeeper } from './keeper-termination.ts';
import { createKeepers } from './keepers.ts';

const run = promisify(execFile);
const clock = systemClock();
const unending = new AbortController().signal;

describe.skipIf(lacks('root', 'fuse', 'mount', 'ganesha'))('keepers and their mounts', () => {
  const nfsExport = exportedByGanesha();

  const source = (): Source & { readonly kind: 'nfs' } => ({
    kind: 'nfs',
    hosts: [nfsExport.server.host],
    path: nfsExport.folder,
    way: {
      client: 'built-in',
      addresses: [nfsExport.server.host],
      port: nfsExport.server.nfsPort,
      mountPort: undefined,
      root: Buffer.from(nfsExport.directory).toString('base64'),
      connections: 1,
      sourcePorts: undefined,
      tls: undefined,
      network: undefined,
      squash: 'none',
      uid: 0,
      gid: 0,
      softMs: undefined,
      maxRead: 65_536,
      maxWrite: 65_536,
      locks: 'node',
      readOnly: false,
      quota: undefined,
    },
  });

  /** As `stowage up` configures them. Counts the calls of `onMountsLost`. */
  function startAgent(stuckMs: number, agentClock: Clock = clock) {
    const scratch = createScratchFolder();
    const folder = (name: string): string => join(scratch.folder, name);
    for (const name of ['keepers', 'mounts']) mkdirSync(folder(name));
    const { scope } = scratch;
    const lostMounts = { times: 0 };
    const abandoned: AbandonedKeeper[] = [];
    const keepers = createKeepers({
      clock: agentClock,
      log: scope.log,
      folder: folder('keepers'),
      version: 'test',
      stuckMs,
      onMountsLost: () => void lostMounts.times++,
      onAbandoned: (what) => void abandoned.push(what),
    });
    const keeperPid = (): number => {
      const fd = connectTo(join(folder('keepers'), 'host', 'sock'));
      const { pid } = peerCredentials(fd);
      closeSync(fd);
      return pid;
    };
    const stoppedPids: number[] = [];
    const stopProcess = (pid: number): void => {
      stoppedPids.push(pid);
      process.kill(pid, 'SIGSTOP');
    };
    const mounts = createRunProgram(clock, undefined, scratch.folder);
    const mounter = createLinuxMounter({
      clock,
      run: mounts,
      forbiddenFolders: () => [],
      storeRoots: () => [],
    });
    const client = createNfsClient({
      mounter,
      run: mounts,
      clock,
      keepers,
      instance: 'test',
      accessPath: createPathAccess(clock),
      readTable: createTableReader(),
    });
    const mountPoints: string[] = [];
    const newMountPoint = (): string => {
      const mountPoint = join(folder('mounts'), newVolumeId());
      const watchdog = startUnmountWatchdog(mountPoint);
      onTestFinished(() => watchdog[Symbol.dispose]());
      mountPoints.push(mountPoint);
      return mountPoint;
    };
    const state = async (): Promise<KeeperState | undefined> => (await keepers.status(unending))[0]?.state;
    onTestFinished(async () => {
      for (const pid of stoppedPids) continueProcess(pid);
      for (const mountPoint of mountPoints)
        await run('umount', ['--force', '--lazy', mountPoint]).catch(() => undefined);
      await eventually(state, (found) => (found?.mounts ?? 0) === 0);
      await keepers.endIdle(unending);
      await keepers[Symbol.asyncDispose]();
      scratch[Symbol.dispose]();
    });
    return {
      client,
      mountPoint: newMountPoint(),
      place: newMountPoint,
      state,
      lostMounts,
      abandoned,
      keeperPid,
      stop: stopProcess,
      scope,
      folder: folder('keepers'),
    };
  }

  function continueProcess(pid: number): void {
    try {
      process.kill(pid, 'SIGCONT');
    } catch {
      // The process has ended.
    }
  }

  /** A program that reads the file; resolves with its output. */
  function startReader(mountPoint: string): { readonly isWaiting: () => boolean; readonly output: Promise<string> } {
    const child = spawn('cat', [join(mountPoint, 'file')], { stdio: ['ignore', 'pipe', 'pipe'] });
    const text: string[] = [];
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => text.push(String(data)));
    const isWaiting = (): boolean => child.exitCode === null;
    return { isWaiting, output: once(child, 'close').then(() => text.join('')) };
  }

  const optionsOf = (mountPoint: string): string =>
    readFileSync('/proc/self/mountinfo', 'utf8')
      .split('\n')
      .findLast((line) => line.split(' ')[4] === mountPoint) ?? '';

  const isComplete = (state: KeeperState | undefined): boolean =>
    state?.active?.ready === true && state.standby !== null;

  test("a mount keeps its keeper although its store's options have changed", { timeout: 60_000 }, async () => {
    const { client, mountPoint, state, scope } = startAgent(10_000);
    writeFileSync(nfsExport.on('file'), 'data');
    await client.stage(source(), targetAt(mountPoint), scope);
    const file = await open(join(mountPoint, 'file'), 'r+');
    onTestFinished(() => file.close());
    const { way, ...rest } = source();
    const changed = { ...rest, way: { ...way, sourcePorts: 'privileged' as const } };
    await client.stage(changed, targetAt(mountPoint), scope);
    expect(await client.findDeadMounts?.([{ source: changed, target: targetAt(mountPoint) }], scope)).toEqual([]);
    await file.write('DATA', 0);
    await client.flush?.(changed, targetAt(mountPoint), scope);
    expect(readFileSync(nfsExport.on('file'), 'utf8')).toBe('DATA');
    expect((await state())?.mounts).toBe(1);
  });

  test('permissions of a mount with squash=all are checked by the data path only, also after a restart of either', {
    timeout: 60_000,
  }, async () => {
    const { client, mountPoint, place, state, scope } = startAgent(10_000);
    const unsquashedMount = place();
    const { way, ...rest } = source();
    const squashedSource = { ...rest, way: { ...way, squash: 'all', uid: 1000, gid: 1000 } as const };
    await nfsExport.nfs.setattr(nfsExport.directory, { uid: 1000, gid: 1000, mode: 0o700 });
    const runAs = (uid: number, script: string) =>
      run('setpriv', ['--reuid', `${uid}`, '--regid', `${uid}`, '--clear-groups', 'sh', '-ec', script], {
        cwd: mountPoint,
      });
    const expectServerChecks = async (): Promise<void> => {
      await runAs(165_536, 'umask 077; echo text > file; chmod 400 file');
      expect((await runAs(166_536, 'cat file')).stdout).toBe('text\n');
      await expect(runAs(166_536, 'echo more >> file')).rejects.toThrow('Permission denied');
      await runAs(166_536, 'rm -f file');
    };
    await client.stage(squashedSource, targetAt(mountPoint), scope);
    await client.stage(source(), targetAt(unsquashedMount), scope);
    expect(
      [optionsOf(mountPoint), optionsOf(unsquashedMount)].map((all) => all.includes('default_permissions')),
    ).toEqual([false, true]);
    await expectServerChecks();
    const { active, takeovers } = (await eventually(state, isComplete)) as KeeperState;
    process.kill(active?.pid ?? 0, 'SIGKILL');
    await eventually(state, (found) => (found?.takeovers ?? 0) > takeovers);
    await expectServerChecks();
    await client.unstage(squashedSource, targetAt(mountPoint), scope, { force: true });
    await client.stage(squashedSource, targetAt(mountPoint), scope);
    await expectServerChecks();
  });

  test('ends all mounts that have had no serving data path until the timeout', { timeout: 60_000 }, async () => {
    const time = createSkippingClock();
    const { client, mountPoint, place, state, lostMounts, abandoned, stop, scope } = startAgent(10_000, time);
    writeFileSync(nfsExport.on('file'), 'data');
    // Only the keeper still knows this mount.
    const other = place();
    for (const path of [mountPoint, other]) await client.stage(source(), targetAt(path), scope);
    const file = await open(join(other, 'file'), 'r');
    onTestFinished(() => file.close().catch(() => undefined));
    await run('umount', ['--lazy', other]);
    const { active, standby } = (await eventually(state, isComplete)) ?? expect.fail();
    // The next data path is stopped before it serves. The keeper needs five seconds to notice.
    stop(standby?.pid ?? 0);
    process.kill(active?.pid ?? 0, 'SIGKILL');
    await eventually(state, (found) => found?.active?.pid === standby?.pid);
    const blockedReader = startReader(mountPoint);
    expect(await client.findDeadMounts?.([{ source: source(), target: targetAt(mountPoint) }], scope)).toEqual([]);
    expect(blockedReader.isWaiting()).toBe(true);
    time.skip(11_000);
    expect(await blockedReader.output).toMatch(/abort|not connected/);
    await expect(file.read(Buffer.alloc(4), 0, 4, 0)).rejects.toThrow(/ENOTCONN|ECONNABORTED/);
    const expectedReport = { keeper: 'host', why: 'no data path serves the mounts' };
    await eventually(
      () => abandoned,
      ([first]) => first?.mounts?.length === 2,
    );
    expect(abandoned).toEqual([expect.objectContaining(expectedReport)]);
    // The keeper has answered the request to end, and is about to end.
    await eventually(
      () => client.findDeadMounts?.([{ source: source(), target: targetAt(mountPoint) }], scope).catch(() => []),
      (dead) => dead?.[0] === mountPoint,
    );
    expect(lostMounts.times).toBeGreaterThan(0);
    await client.stage(source(), targetAt(mountPoint), scope);
    expect((await run('cat', [join(mountPoint, 'file')], { timeout: 20_000 })).stdout).toBe('data');
    expect((await eventually(state, isComplete))?.mounts).toBe(1);
    expect(await client.findDeadMounts?.([{ source: source(), target: targetAt(mountPoint) }], scope)).toEqual([]);
  });

  test('a data path whose keeper was killed keeps serving, and gets another keeper', { timeout: 60_000 }, async () => {
    const { client, mountPoint, state, lostMounts, keeperPid, scope } = startAgent(10_000);
    writeFileSync(nfsExport.on('file'), 'data');
    await client.stage(source(), targetAt(mountPoint), scope);
    const { active } = (await eventually(state, isComplete)) ?? expect.fail();
    const file = await open(join(mountPoint, 'file'), 'r');
    onTestFinished(() => file.close());
    const killedPid = keeperPid();
    process.kill(killedPid, 'SIGKILL');
    await eventually(
      () => lostMounts.times,
      (times) => times > 0,
    );
    expect(await client.findDeadMounts?.([{ source: source(), target: targetAt(mountPoint) }], scope)).toEqual([]);
    await client.stage(source(), targetAt(mountPoint), scope);
    expect((await file.read({ buffer: Buffer.alloc(4) })).buffer.toString()).toBe('data');
    expect(keeperPid()).not.toBe(killedPid);
    expect((await state())?.active?.pid).toBe(active?.pid);
  });

  test('kills a keeper that does not answer, and its data path gets another one', { timeout: 60_000 }, async () => {
    const { client, mountPoint, state, abandoned, keeperPid, stop, scope } = startAgent(10_000);
    writeFileSync(nfsExport.on('file'), 'data');
    await client.stage(source(), targetAt(mountPoint), scope);
    const { active } = (await eventually(state, isComplete)) ?? expect.fail();
    const file = await open(join(mountPoint, 'file'), 'r');
    onTestFinished(() => file.close());
    stop(keeperPid());
    expect(await state()).toBeUndefined();
    expect((await eventually(state, isComplete))?.active?.pid).toBe(active?.pid);
    expect((await file.read({ buffer: Buffer.alloc(4) })).buffer.toString()).toBe('data');
    expect(abandoned).toEqual([{ keeper: 'host', why: 'the keeper no longer answers', mounts: undefined }]);
  });

  test('no application waits forever if the keeper hangs and its data path is gone', {
    timeout: 60_000,
  }, async () => {
    const { client, mountPoint, state, lostMounts, keeperPid, stop, scope } = startAgent(10_000);
    writeFileSync(nfsExport.on('file'), 'data');
    await client.stage(source(), targetAt(mountPoint), scope);
    const { active } = (await eventually(state, isComplete)) ?? expect.fail();
    stop(keeperPid());
    process.kill(active?.pid ?? 0, 'SIGKILL');
    const waits = startReader(mountPoint);
    using limit = clock.deadline(10_000, unending);
    const unavailable = { reason: 'data-path-unavailable' };
    await expect(
      client.flush?.(source(), targetAt(mountPoint), { ...scope, signal: limit.signal }),
    ).rejects.toMatchObject(unavailable);
    expect(lostMounts.times).toBe(0);
    expect(await waits.output).toMatch(/abort|not connected/);
    await eventually(
      () => lostMounts.times,
      (times) => times > 0,
    );
    expect(await client.findDeadMounts?.([{ source: source(), target: targetAt(mountPoint) }], scope)).toEqual([
      mountPoint,
    ]);
    await client.stage(source(), targetAt(mountPoint), scope);
    expect((await run('cat', [join(mountPoint, 'file')], { timeout: 20_000 })).stdout).toBe('data');
  });

  test('an unreachable keeper does not affect the mounts of other keepers', {
    timeout: 60_000,
  }, async () => {
    const { client, mountPoint, state, keeperPid, folder, scope } = startAgent(10_000);
    writeFileSync(nfsExport.on('file'), 'data');
    await client.stage(source(), targetAt(mountPoint), scope);
    const { active, standby } = (await eventually(state, isComplete)) ?? expect.fail();
    // Its data path lives, but its network is gone, so the keeper cannot be restarted.
    mkdirSync(join(folder, 'net-deadbeef'), { mode: 0o700 });
    writeFileSync(join(folder, 'net-deadbeef.json'), JSON.stringify({ network: 'gone', privilegedPorts: false }));
    const servingLock = holdServingLock(join(folder, 'net-deadbeef', 'sock'), clock);
    onTestFinished(() => servingLock[Symbol.dispose]());
    for (const pid of [keeperPid(), active?.pid ?? 0, standby?.pid ?? 0]) process.kill(pid, 'SIGKILL');
    await eventually(
      () => client.findDeadMounts?.([{ source: source(), target: targetAt(mountPoint) }], scope).catch(() => []),
      (dead) => dead?.[0] === mountPoint,
    );
    await client.stage(source(), targetAt(mountPoint), scope);
    expect((await run('cat', [join(mountPoint, 'file')], { timeout: 20_000 })).stdout).toBe('data');
  });

  test('keeps mounts whose data path serves in time', { timeout: 60_000 }, async () => {
    const { client, mountPoint, state, lostMounts, stop, scope } = startAgent(10_000);
    writeFileSync(nfsExport.on('file'), 'data');
    await client.stage(source(), targetAt(mountPoint), scope);
    const { active, standby } = (await eventually(state, isComplete)) ?? expect.fail();
    stop(standby?.pid ?? 0);
    process.kill(active?.pid ?? 0, 'SIGKILL');
    expect((await run('cat', [join(mountPoint, 'file')], { timeout: 20_000 })).stdout).toBe('data');
    await eventually(state, isComplete);
    expect([
      lostMounts.times,
      await client.findDeadMounts?.([{ source: source(), target: targetAt(mountPoint) }], scope),
    ]).toEqual([0, []]);
  });
});
