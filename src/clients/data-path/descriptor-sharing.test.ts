import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Source } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { startUnmountWatchdog } from '#testing/fuse-mount.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { type KeeperPod, startKeeperPod } from '#testing/keeper/pod.ts';
import { createSlowSuccessor } from '#testing/keeper/slow-successor.ts';
import { connectionOf, runWithFaults } from '#testing/keeper-mounts.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { sized } from '#testing/sized.ts';
import { targetAt } from '#testing/staging-target.ts';
import { runFioVerify, runModelWorkload } from '#testing/workloads.ts';
import { createNfsClient } from '../kinds/nfs.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { createTableReader } from '../mounter/mountinfo.ts';
import { createPathAccess } from '../mounter/path-access.ts';
import { createRun } from '../mounter/run-program.ts';
import { podKeeperUser } from './keeper-pod.ts';
import { createKeepers, type Keepers } from './keepers.ts';

const run = promisify(execFile);
const clock = systemClock();
const unending = new AbortController().signal;
const program = join(import.meta.dirname, '..', '..', 'datapath', 'main.ts');
/** The sources start slowly, and other tests run at the same time. */
const pauseMs = 15_000;

describe.skipIf(needs('root', 'fuse', 'mount', 'ganesha', 'fio'))('a keeper in a pod', () => {
  const it = exportedByGanesha();

  const source = (): Source & { readonly kind: 'nfs' } => ({
    kind: 'nfs',
    hosts: [it.server.host],
    path: it.folder,
    way: {
      client: 'built-in',
      addresses: [it.server.host],
      port: it.server.nfsPort,
      mountPort: undefined,
      root: Buffer.from(it.directory).toString('base64'),
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

  async function node(keeperWaitMs = 60_000) {
    const ground = createScratchFolder('stowage-pod-');
    chmodSync(ground.folder, 0o711);
    const folder = (name: string): string => join(ground.folder, name);
    mkdirSync(folder('mounts'));
    const lostMounts = { times: 0 };
    const startAgent = () => {
      const keepers = createKeepers({
        clock,
        log: ground.scope.log,
        folder: folder('keepers'),
        version: 'test',
        keeperWaitMs,
        onAbandoned: () => undefined,
        onMountsLost: () => void lostMounts.times++,
        placement: { engines: new Map(), instance: 'test', requestedPlace: 'pod' },
      });
      const mounts = createRun(clock, undefined, ground.folder);
      const mounter = createLinuxMounter({
        clock,
        run: mounts,
        forbidden: () => [],
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
      return { keepers, client };
    };
    let agent = startAgent();
    const log = folder('keepers/host/log');
    let pods = 0;
    const all: KeeperPod[] = [];
    const startPod = async (uid = `pod-${++pods}`): Promise<KeeperPod> => {
      const socket = folder('keepers/host/sock');
      const pod = await startKeeperPod({ socket, program, log, user: podKeeperUser, uid });
      all.push(pod);
      return pod;
    };
    const places: string[] = [];
    const place = (): string => {
      const at = join(folder('mounts'), newVolumeId());
      const guarding = startUnmountWatchdog(at);
      onTestFinished(() => guarding[Symbol.dispose]());
      places.push(at);
      return at;
    };
    const state = async (): Promise<KeeperState | undefined> => (await agent.keepers.status(unending))[0]?.state;
    onTestFinished(async () => {
      for (const at of places) await run('umount', ['--force', '--lazy', at]).catch(() => undefined);
      await agent.keepers[Symbol.asyncDispose]();
      for (const pod of all) await pod.kill();
      ground[Symbol.dispose]();
    });
    const at = place();
    return {
      at,
      place,
      startPod,
      state,
      lostMounts,
      scope: ground.scope,
      folder: ground.folder,
      log: () => readFileSync(log, 'utf8'),
      get keepers(): Keepers {
        return agent.keepers;
      },
      get client() {
        return agent.client;
      },
      /** Simulates a kill: closes all its descriptors without a message. */
      stopAgent: () => agent.keepers[Symbol.asyncDispose](),
      startAgent: () => {
        agent = startAgent();
      },
      async restartAgent() {
        await this.stopAgent();
        this.startAgent();
        await state();
      },
    };
  }

  const whole = (found: KeeperState | undefined): boolean =>
    found?.active?.ready === true && found.standby !== null && found.isBorrowed !== true;
  /** The descriptors of /dev/fuse in this process, the agent. */
  const held = (pid: number | 'self' = 'self'): number =>
    readdirSync(`/proc/${pid}/fd`).filter((fd) => linkOf(`/proc/${pid}/fd/${fd}`) === '/dev/fuse').length;
  const linkOf = (path: string): string => {
    try {
      return readlinkSync(path);
    } catch {
      return '';
    }
  };

  let rounds = 0;
  async function busy(at: string, folder: string): Promise<void> {
    const own = join(at, `names-${++rounds}`);
    await run('mkdir', [own]);
    await Promise.all([runFioVerify(at, folder), runModelWorkload(own, rounds, 100)]);
  }

  test('can be killed with its data path repeatedly: the next keeper gets everything, and applications see no error', {
    timeout: 300_000,
  }, async () => {
    const here = await node();
    let pod = await here.startPod();
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    const pauses: number[] = [];
    const kill = async (): Promise<void> => {
      await pod.kill();
      const since = performance.now();
      pod = await here.startPod();
      await run('stat', [here.at], { timeout: pauseMs });
      await eventually(here.state, (found) => found?.active?.ready === true);
      pauses.push(performance.now() - since);
    };
    await runWithFaults(sized({ usual: 6, long: 20 }), kill, () => busy(here.at, here.folder));
    expect(Math.max(...pauses)).toBeLessThan(pauseMs);
    expect(await here.client.findDeadMounts?.([{ source: source(), target: targetAt(here.at) }], here.scope)).toEqual(
      [],
    );
    await run('umount', [here.at]);
  });

  test('can be killed after its agent was: the new agent has copies again', { timeout: 120_000 }, async () => {
    const here = await node();
    let pod = await here.startPod();
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    const kill = async (): Promise<void> => {
      await here.restartAgent();
      expect(held()).toBe(1);
      await pod.kill();
      pod = await here.startPod();
      await run('stat', [here.at], { timeout: pauseMs });
      await eventually(here.state, whole);
    };
    await runWithFaults(3, kill, () => busy(here.at, here.folder));
    await run('umount', [here.at]);
  });

  test('loses its mounts if it is killed together with the agent, and the volumes are remounted', {
    timeout: 60_000,
  }, async () => {
    const here = await node();
    writeFileSync(it.on('file'), 'data');
    const pod = await here.startPod();
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    await here.keepers[Symbol.asyncDispose]();
    await pod.kill();
    await expect(run('cat', [join(here.at, 'file')], { timeout: pauseMs })).rejects.toThrow(/not connected|abort/);
    await here.startPod();
    await here.restartAgent();
    expect(await here.client.findDeadMounts?.([{ source: source(), target: targetAt(here.at) }], here.scope)).toEqual([
      here.at,
    ]);
    await here.client.stage(source(), targetAt(here.at), here.scope);
    expect((await run('cat', [join(here.at, 'file')], { timeout: pauseMs })).stdout).toBe('data');
    expect(held()).toBe(1);
  });

  test('keeps no unmounted volumes, and neither do the copies, with or without a keeper', {
    timeout: 60_000,
  }, async () => {
    const here = await node();
    const pod = await here.startPod();
    const other = here.place();
    for (const at of [here.at, other]) await here.client.stage(source(), targetAt(at), here.scope);
    await eventually(here.state, whole);
    expect(held()).toBe(2);
    const kernel = join(here.folder, 'kernel');
    mkdirSync(kernel);
    await run('mount', ['-t', 'fusectl', 'stowage-test', kernel]);
    // The kernel lists the connections of all processes.
    const [first, second] = [other, here.at].map((at) => join(kernel, connectionOf(at))) as [string, string];
    expect([first, second].map((one) => existsSync(one))).toEqual([true, true]);
    await here.client.unstage(source(), targetAt(other), here.scope);
    await eventually(held, (count) => count === 1);
    expect([first, second].map((one) => existsSync(one))).toEqual([false, true]);
    await pod.kill();
    await eventually(here.state, (found) => found === undefined);
    await here.client.unstage(source(), targetAt(here.at), here.scope);
    expect(existsSync(second)).toBe(false);
    // The next keeper gets what the kernel has ended, and notices that.
    await here.startPod();
    await eventually(here.state, (found) => found?.mounts === 0);
    await eventually(held, (count) => count === 0);
  });

  test('does not make callers wait forever if its pod does not return, and remounts nothing before the timeout', {
    timeout: 60_000,
  }, async () => {
    const here = await node(3_000);
    writeFileSync(it.on('file'), 'data');
    const pod = await here.startPod();
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    await pod.kill();
    const waits = run('cat', [join(here.at, 'file')], { timeout: pauseMs });
    waits.catch(() => undefined);
    await eventually(here.state, (found) => found === undefined);
    const staged = [{ source: source(), target: targetAt(here.at) }];
    await expect(here.client.findDeadMounts?.(staged, here.scope)).rejects.toMatchObject({
      reason: 'data-path-unavailable',
    });
    expect(await here.keepers.serving('stowage:', unending)).toHaveLength(1);
    expect(here.lostMounts.times).toBe(0);
    await expect(waits).rejects.toThrow(/not connected|abort/);
    await eventually(
      () => here.lostMounts.times,
      (times) => times > 0,
    );
    expect(held()).toBe(0);
    expect(await here.client.findDeadMounts?.(staged, here.scope)).toEqual([here.at]);
  });

  /** Writes on request, and calls fsync on the second request. */
  const writer = `
    const { openSync, writeSync, fsyncSync } = require('node:fs');
    const fd = openSync(process.argv[1], 'w');
    const say = (word) => process.stdout.write(word + '\\n');
    const steps = [() => writeSync(fd, Buffer.alloc(300_000, 'x')), () => fsyncSync(fd), () => process.exit(0)];
    process.stdin.on('data', () => { steps.shift()(); say('done'); });
    say('done');`;

  test('can be killed while the server is silent, without the loss of acknowledged writes', {
    timeout: 60_000,
  }, async () => {
    const here = await node();
    const pod = await here.startPod();
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    const child = spawn(process.execPath, ['-e', writer, join(here.at, 'written')], {
      stdio: ['pipe', 'pipe', 'inherit'],
      timeout: 50_000,
      killSignal: 'SIGKILL',
    });
    const ended = once(child, 'exit');
    const step = async (): Promise<void> => {
      const [said] = await once(child.stdout, 'data');
      expect(String(said)).toBe('done\n');
    };
    await step();
    await it.frozen(async () => {
      child.stdin.write('write');
      await step();
      await pod.kill();
      await here.startPod();
      await eventually(here.state, (found) => found?.active?.ready === true);
      expect(readFileSync(it.on('written')).length).toBe(0);
    });
    child.stdin.write('sync');
    await step();
    expect(readFileSync(it.on('written')).equals(Buffer.alloc(300_000, 'x'))).toBe(true);
    child.stdin.write('end');
    expect(await ended).toEqual([0, null]);
  });

  test('gets replaced by one in a new pod with a data path of its own; the older pod cannot take over again', {
    timeout: 120_000,
  }, async () => {
    const here = await node();
    const first = await here.startPod('first');
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    const inCharge = (): number => here.log().match(/"this keeper is in charge"/g)?.length ?? 0;
    const roll = async (): Promise<void> => {
      const second = await here.startPod('second');
      await eventually(inCharge, (count) => count === 2);
      await eventually(here.state, (found) => whole(found) && found?.mounts === 1);
      // It no longer holds anything and waits, since otherwise Kubernetes would restart it.
      await eventually(
        () => held(first.pid),
        (count) => count === 0,
      );
      expect(held(second.pid)).toBe(1);
      await eventually(here.log, (log) => log.includes('the keeper of another pod is in charge'));
      await first.kill();
      const again = await here.startPod('first');
      await eventually(here.log, (log) => log.split('the keeper of another pod is in charge').length === 3);
      expect(inCharge()).toBe(2);
      // It is the one that remains when the other one ends.
      await second.kill();
      await eventually(inCharge, (count) => count >= 3);
      await eventually(here.state, (found) => whole(found) && found?.mounts === 1);
      expect(held(again.pid)).toBe(1);
    };
    await runWithFaults(1, roll, () => busy(here.at, here.folder));
    await run('umount', [here.at]);
  });

  test('stays on SIGTERM as long as it has mounts', { timeout: 60_000 }, async () => {
    const here = await node();
    const pod = await here.startPod();
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    process.kill(pod.pid, 'SIGTERM');
    await eventually(here.log, (log) => log.includes('received SIGTERM'));
    await run('sh', ['-c', `echo data >${join(here.at, 'file')}`], { timeout: pauseMs });
    await here.client.unstage(source(), targetAt(here.at), here.scope);
    expect(await pod.ended).toEqual([0, null]);
  });

  test('hands over on SIGTERM: its data path keeps running until it is replaced', {
    timeout: 120_000,
  }, async () => {
    const here = await node();
    const first = await here.startPod('first');
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    const succeed = async (): Promise<void> => {
      process.kill(first.pid, 'SIGTERM');
      await eventually(here.log, (log) => log.includes('received SIGTERM'));
      await here.startPod('second');
      expect(await first.ended).toEqual([0, null]);
      expect(await eventually(here.state, whole)).toMatchObject({ mounts: 1, takeovers: 1, deaths: 0 });
    };
    await runWithFaults(1, succeed, () => busy(here.at, here.folder));
    await run('umount', [here.at]);
  });

  test('may hand over while an agent starts: the agent does not take the mounts for dead although the new keeper does not listen yet', {
    timeout: 60_000,
  }, async () => {
    const here = await node();
    const first = await here.startPod();
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await eventually(here.state, whole);
    await here.stopAgent();
    process.kill(first.pid, 'SIGTERM');
    await eventually(here.log, (log) => log.includes('received SIGTERM'));
    using _ = await createSlowSuccessor(join(here.folder, 'keepers', 'host', 'sock'));
    here.startAgent();
    const looked = here.client.findDeadMounts?.([{ source: source(), target: targetAt(here.at) }], here.scope);
    await expect(looked).rejects.toMatchObject({ reason: 'data-path-unavailable' });
  });

  test('is waited for and reported if it does not run', { timeout: 60_000 }, async () => {
    const here = await node();
    const staging = here.client.stage(source(), targetAt(here.at), here.scope);
    await expect(staging).rejects.toMatchObject({
      reason: 'keeper-pod-missing',
      action: expect.stringContaining('kubectl'),
    });
    const { way, ...rest } = source();
    const elsewhere = { ...rest, way: { ...way, network: 'netns:storage' } };
    await expect(here.client.stage(elsewhere, targetAt(here.at), here.scope)).rejects.toMatchObject({
      reason: 'keeper-pod-network',
    });
    const low = { ...rest, way: { ...way, sourcePorts: 'privileged' as const } };
    await expect(here.client.stage(low, targetAt(here.at), here.scope)).rejects.toMatchObject({
      reason: 'keeper-pod-ports',
    });
    await here.startPod();
    await here.client.stage(source(), targetAt(here.at), here.scope);
    await expect(here.keepers.upgrade(unending)).rejects.toMatchObject({ reason: 'keeper-pod-upgrade' });
    await here.keepers.endIdle(unending);
    expect(await here.state()).toMatchObject({ mounts: 1 });
  });
});
