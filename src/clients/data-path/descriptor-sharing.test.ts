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
import { lacks } from '#testbed/lacks.ts';
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
import { createRunProgram } from '../mounter/run-program.ts';
import { defaultPodUser } from './keeper-pod.ts';
import { createKeepers, type Keepers } from './keepers.ts';

const run = promisify(execFile);
const clock = systemClock();
const unending = new AbortController().signal;
const program = join(import.meta.dirname, '..', '..', 'datapath', 'main.ts');
/** A data path that runs from source starts slowly, and other tests run at the same time. */
const maxPauseMs = 15_000;

describe.skipIf(lacks('root', 'fuse', 'mount', 'ganesha', 'fio'))('a keeper in a pod', () => {
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

  async function startNode(keeperWaitMs = 60_000) {
    const scratch = createScratchFolder('stowage-pod-');
    chmodSync(scratch.folder, 0o711);
    const folder = (name: string): string => join(scratch.folder, name);
    mkdirSync(folder('mounts'));
    const lostMounts = { times: 0 };
    const startAgent = () => {
      const keepers = createKeepers({
        clock,
        log: scratch.scope.log,
        folder: folder('keepers'),
        version: 'test',
        keeperWaitMs,
        onAbandoned: () => undefined,
        onMountsLost: () => void lostMounts.times++,
        placement: { engines: new Map(), instance: 'test', requestedPlace: 'pod' },
      });
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
      return { keepers, client };
    };
    let agent = startAgent();
    const log = folder('keepers/host/log');
    let pods = 0;
    const startedPods: KeeperPod[] = [];
    const startPod = async (uid = `pod-${++pods}`): Promise<KeeperPod> => {
      const socket = folder('keepers/host/sock');
      const pod = await startKeeperPod({ socket, program, log, user: defaultPodUser, uid });
      startedPods.push(pod);
      return pod;
    };
    const mountPoints: string[] = [];
    const newMountPoint = (): string => {
      const mountPoint = join(folder('mounts'), newVolumeId());
      const watchdog = startUnmountWatchdog(mountPoint);
      onTestFinished(() => watchdog[Symbol.dispose]());
      mountPoints.push(mountPoint);
      return mountPoint;
    };
    const state = async (): Promise<KeeperState | undefined> => (await agent.keepers.status(unending))[0]?.state;
    onTestFinished(async () => {
      for (const mountPoint of mountPoints)
        await run('umount', ['--force', '--lazy', mountPoint]).catch(() => undefined);
      await agent.keepers[Symbol.asyncDispose]();
      for (const pod of startedPods) await pod.kill();
      scratch[Symbol.dispose]();
    });
    const mountPoint = newMountPoint();
    return {
      mountPoint,
      place: newMountPoint,
      startPod,
      state,
      lostMounts,
      scope: scratch.scope,
      folder: scratch.folder,
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

  const isComplete = (found: KeeperState | undefined): boolean =>
    found?.active?.ready === true && found.standby !== null && found.isBorrowed !== true;
  /** The descriptors of /dev/fuse in this process, the agent. */
  const countFuseDescriptors = (pid: number | 'self' = 'self'): number =>
    readdirSync(`/proc/${pid}/fd`).filter((fd) => linkOf(`/proc/${pid}/fd/${fd}`) === '/dev/fuse').length;
  const linkOf = (path: string): string => {
    try {
      return readlinkSync(path);
    } catch {
      return '';
    }
  };

  let rounds = 0;
  async function runWorkload(mountPoint: string, folder: string): Promise<void> {
    const namesFolder = join(mountPoint, `names-${++rounds}`);
    await run('mkdir', [namesFolder]);
    await Promise.all([runFioVerify(mountPoint, folder), runModelWorkload(namesFolder, rounds, 100)]);
  }

  test('can be killed with its data path repeatedly: the next keeper gets everything, and applications see no error', {
    timeout: 300_000,
  }, async () => {
    const node = await startNode();
    let pod = await node.startPod();
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    const pauses: number[] = [];
    const kill = async (): Promise<void> => {
      await pod.kill();
      const since = performance.now();
      pod = await node.startPod();
      await run('stat', [node.mountPoint], { timeout: maxPauseMs });
      await eventually(node.state, (found) => found?.active?.ready === true);
      pauses.push(performance.now() - since);
    };
    await runWithFaults(sized({ usual: 6, long: 20 }), kill, () => runWorkload(node.mountPoint, node.folder));
    expect(Math.max(...pauses)).toBeLessThan(maxPauseMs);
    expect(
      await node.client.findDeadMounts?.([{ source: source(), target: targetAt(node.mountPoint) }], node.scope),
    ).toEqual([]);
    await run('umount', [node.mountPoint]);
  });

  test('can be killed after its agent restarted: the new agent has copies again', { timeout: 120_000 }, async () => {
    const node = await startNode();
    let pod = await node.startPod();
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    const kill = async (): Promise<void> => {
      await node.restartAgent();
      expect(countFuseDescriptors()).toBe(1);
      await pod.kill();
      pod = await node.startPod();
      await run('stat', [node.mountPoint], { timeout: maxPauseMs });
      await eventually(node.state, isComplete);
    };
    await runWithFaults(3, kill, () => runWorkload(node.mountPoint, node.folder));
    await run('umount', [node.mountPoint]);
  });

  test('loses its mounts if it is killed together with the agent, and the volumes are remounted', {
    timeout: 60_000,
  }, async () => {
    const node = await startNode();
    writeFileSync(nfsExport.on('file'), 'data');
    const pod = await node.startPod();
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    await node.keepers[Symbol.asyncDispose]();
    await pod.kill();
    await expect(run('cat', [join(node.mountPoint, 'file')], { timeout: maxPauseMs })).rejects.toThrow(
      /not connected|abort/,
    );
    await node.startPod();
    await node.restartAgent();
    expect(
      await node.client.findDeadMounts?.([{ source: source(), target: targetAt(node.mountPoint) }], node.scope),
    ).toEqual([node.mountPoint]);
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    expect((await run('cat', [join(node.mountPoint, 'file')], { timeout: maxPauseMs })).stdout).toBe('data');
    expect(countFuseDescriptors()).toBe(1);
  });

  test('drops unmounted volumes, as do the copies, with or without a keeper', {
    timeout: 60_000,
  }, async () => {
    const node = await startNode();
    const pod = await node.startPod();
    const other = node.place();
    for (const mountPoint of [node.mountPoint, other])
      await node.client.stage(source(), targetAt(mountPoint), node.scope);
    await eventually(node.state, isComplete);
    expect(countFuseDescriptors()).toBe(2);
    const fusectl = join(node.folder, 'kernel');
    mkdirSync(fusectl);
    await run('mount', ['-t', 'fusectl', 'stowage-test', fusectl]);
    // The kernel lists the connections of all processes.
    const [first, second] = [other, node.mountPoint].map((mountPoint) => join(fusectl, connectionOf(mountPoint))) as [
      string,
      string,
    ];
    expect([first, second].map((one) => existsSync(one))).toEqual([true, true]);
    await node.client.unstage(source(), targetAt(other), node.scope);
    await eventually(countFuseDescriptors, (count) => count === 1);
    expect([first, second].map((one) => existsSync(one))).toEqual([false, true]);
    await pod.kill();
    await eventually(node.state, (found) => found === undefined);
    await node.client.unstage(source(), targetAt(node.mountPoint), node.scope);
    expect(existsSync(second)).toBe(false);
    // The next keeper gets the descriptor of a mount that the kernel has ended, and notices that.
    await node.startPod();
    await eventually(node.state, (found) => found?.mounts === 0);
    await eventually(countFuseDescriptors, (count) => count === 0);
  });

  test('does not make callers wait forever if its pod does not return, and remounts nothing before the timeout', {
    timeout: 60_000,
  }, async () => {
    const node = await startNode(3_000);
    writeFileSync(nfsExport.on('file'), 'data');
    const pod = await node.startPod();
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    await pod.kill();
    const blockedRead = run('cat', [join(node.mountPoint, 'file')], { timeout: maxPauseMs });
    blockedRead.catch(() => undefined);
    await eventually(node.state, (found) => found === undefined);
    const staged = [{ source: source(), target: targetAt(node.mountPoint) }];
    await expect(node.client.findDeadMounts?.(staged, node.scope)).rejects.toMatchObject({
      reason: 'data-path-unavailable',
    });
    expect(await node.keepers.servedMounts('stowage:', unending)).toHaveLength(1);
    expect(node.lostMounts.times).toBe(0);
    await expect(blockedRead).rejects.toThrow(/not connected|abort/);
    await eventually(
      () => node.lostMounts.times,
      (times) => times > 0,
    );
    expect(countFuseDescriptors()).toBe(0);
    expect(await node.client.findDeadMounts?.(staged, node.scope)).toEqual([node.mountPoint]);
  });

  /** Writes on request, and calls fsync on the second request. */
  const writerScript = `
    const { openSync, writeSync, fsyncSync } = require('node:fs');
    const fd = openSync(process.argv[1], 'w');
    const say = (word) => process.stdout.write(word + '\\n');
    const steps = [() => writeSync(fd, Buffer.alloc(300_000, 'x')), () => fsyncSync(fd), () => process.exit(0)];
    process.stdin.on('data', () => { steps.shift()(); say('done'); });
    say('done');`;

  test('can be killed while the server is silent, without the loss of acknowledged writes', {
    timeout: 60_000,
  }, async () => {
    const node = await startNode();
    const pod = await node.startPod();
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    const child = spawn(process.execPath, ['-e', writerScript, join(node.mountPoint, 'written')], {
      stdio: ['pipe', 'pipe', 'inherit'],
      timeout: 50_000,
      killSignal: 'SIGKILL',
    });
    const ended = once(child, 'exit');
    const step = async (): Promise<void> => {
      const [output] = await once(child.stdout, 'data');
      expect(String(output)).toBe('done\n');
    };
    await step();
    await nfsExport.frozen(async () => {
      child.stdin.write('write');
      await step();
      await pod.kill();
      await node.startPod();
      await eventually(node.state, (found) => found?.active?.ready === true);
      expect(readFileSync(nfsExport.on('written')).length).toBe(0);
    });
    child.stdin.write('sync');
    await step();
    expect(readFileSync(nfsExport.on('written')).equals(Buffer.alloc(300_000, 'x'))).toBe(true);
    child.stdin.write('end');
    expect(await ended).toEqual([0, null]);
  });

  test('is replaced by the keeper of a new pod, with a data path of its own; the older pod cannot take over again', {
    timeout: 120_000,
  }, async () => {
    const node = await startNode();
    const first = await node.startPod('first');
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    const countTakeovers = (): number => node.log().match(/"this keeper is in charge"/g)?.length ?? 0;
    const replacePod = async (): Promise<void> => {
      const second = await node.startPod('second');
      await eventually(countTakeovers, (count) => count === 2);
      await eventually(node.state, (found) => isComplete(found) && found?.mounts === 1);
      // The first keeper holds no descriptors and waits: if it ended, Kubernetes would restart it.
      await eventually(
        () => countFuseDescriptors(first.pid),
        (count) => count === 0,
      );
      expect(countFuseDescriptors(second.pid)).toBe(1);
      await eventually(node.log, (log) => log.includes('the keeper of another pod is in charge'));
      await first.kill();
      const restartedFirst = await node.startPod('first');
      await eventually(node.log, (log) => log.split('the keeper of another pod is in charge').length === 3);
      expect(countTakeovers()).toBe(2);
      // The first keeper takes over when the second one ends.
      await second.kill();
      await eventually(countTakeovers, (count) => count >= 3);
      await eventually(node.state, (found) => isComplete(found) && found?.mounts === 1);
      expect(countFuseDescriptors(restartedFirst.pid)).toBe(1);
    };
    await runWithFaults(1, replacePod, () => runWorkload(node.mountPoint, node.folder));
    await run('umount', [node.mountPoint]);
  });

  test('does not exit on SIGTERM while it has mounts', { timeout: 60_000 }, async () => {
    const node = await startNode();
    const pod = await node.startPod();
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    process.kill(pod.pid, 'SIGTERM');
    await eventually(node.log, (log) => log.includes('received SIGTERM'));
    await run('sh', ['-c', `echo data >${join(node.mountPoint, 'file')}`], { timeout: maxPauseMs });
    await node.client.unstage(source(), targetAt(node.mountPoint), node.scope);
    expect(await pod.ended).toEqual([0, null]);
  });

  test('hands over on SIGTERM: its data path keeps running until it is replaced', {
    timeout: 120_000,
  }, async () => {
    const node = await startNode();
    const first = await node.startPod('first');
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    const handOver = async (): Promise<void> => {
      process.kill(first.pid, 'SIGTERM');
      await eventually(node.log, (log) => log.includes('received SIGTERM'));
      await node.startPod('second');
      expect(await first.ended).toEqual([0, null]);
      expect(await eventually(node.state, isComplete)).toMatchObject({ mounts: 1, takeovers: 1, deaths: 0 });
    };
    await runWithFaults(1, handOver, () => runWorkload(node.mountPoint, node.folder));
    await run('umount', [node.mountPoint]);
  });

  test('may hand over while an agent starts: the agent does not take the mounts for dead although the new keeper does not listen yet', {
    timeout: 60_000,
  }, async () => {
    const node = await startNode();
    const first = await node.startPod();
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await eventually(node.state, isComplete);
    await node.stopAgent();
    process.kill(first.pid, 'SIGTERM');
    await eventually(node.log, (log) => log.includes('received SIGTERM'));
    using _ = await createSlowSuccessor(join(node.folder, 'keepers', 'host', 'sock'));
    node.startAgent();
    const deadCheck = node.client.findDeadMounts?.(
      [{ source: source(), target: targetAt(node.mountPoint) }],
      node.scope,
    );
    await expect(deadCheck).rejects.toMatchObject({ reason: 'data-path-unavailable' });
  });

  test('is reported as missing if it does not start in time', { timeout: 60_000 }, async () => {
    const node = await startNode();
    const staging = node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await expect(staging).rejects.toMatchObject({
      reason: 'keeper-pod-missing',
      action: expect.stringContaining('kubectl'),
    });
    const { way, ...rest } = source();
    const otherNetwork = { ...rest, way: { ...way, network: 'netns:storage' } };
    await expect(node.client.stage(otherNetwork, targetAt(node.mountPoint), node.scope)).rejects.toMatchObject({
      reason: 'keeper-pod-network',
    });
    const privilegedSource = { ...rest, way: { ...way, sourcePorts: 'privileged' as const } };
    await expect(node.client.stage(privilegedSource, targetAt(node.mountPoint), node.scope)).rejects.toMatchObject({
      reason: 'keeper-pod-ports',
    });
    await node.startPod();
    await node.client.stage(source(), targetAt(node.mountPoint), node.scope);
    await expect(node.keepers.upgrade(unending)).rejects.toMatchObject({ reason: 'keeper-pod-upgrade' });
    await node.keepers.endIdle(unending);
    expect(await node.state()).toMatchObject({ mounts: 1 });
  });
});
