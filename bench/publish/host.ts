import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startGanesha } from '#testbed/ganesha.ts';
import { type GrpcClient, grpcClient } from '#testing/grpc-client.ts';
import { mountImage } from '#testing/loop-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { Controller, VolumeCapability_AccessMode_Mode as Mode, Node } from '#wire/csi/generated/csi.ts';
import { command } from '../datapath/command.ts';
import { type MeasuredFileSystem, makeFolder } from '../nfs/measured-folder.ts';
import { startServer } from '../server.ts';
import { createBareMounts } from './bare.ts';

export const sides = ['local', 'nfs', 'driver', 'answers', 'calls', 'programs'] as const;
/**
 * What stages and publishes: Stowage, for a volume of either store; a driver that only makes the mounts; a driver that
 * makes none; and mounts without a driver, by system calls or by the program `mount`.
 */
export type Side = (typeof sides)[number];

/** The sides with a CSI driver. */
type CsiSide = Exclude<Side, 'calls' | 'programs'>;

/** `publish` stages and publishes a volume, counted from 0, and returns the milliseconds. `unpublish` reverts that. */
export interface PublishHost extends AsyncDisposable {
  up(side: Side, volume: number): Promise<number>;
  down(side: Side, volume: number): Promise<void>;
}

const program = fileURLToPath(new URL('../../bin/stowage', import.meta.url));
const bareDriver = fileURLToPath(new URL('./bare-driver.ts', import.meta.url));
const capability = {
  accessType: { case: 'mount', value: {} },
  accessMode: { mode: Mode.MULTI_NODE_MULTI_WRITER },
} as const;
const single = { ...capability, accessMode: { mode: Mode.SINGLE_NODE_WRITER } } as const;
const { method } = Node;
const imageMiB = 1024;

interface Places {
  readonly staging: string;
  readonly target: string;
}

/** Everything is in temporary folders that are removed at the end. */
export async function startHost(
  volumes: number,
  exports: MeasuredFileSystem,
  signal: AbortSignal,
): Promise<PublishHost> {
  await using stack = new AsyncDisposableStack();
  const scratch = stack.use(createScratchFolder('st-bench-'));
  const folder = await diskInMemory(scratch, signal);
  const at = (...names: readonly string[]): string => join(folder, ...names);
  const exported = stack.use(await makeFolder(exports, []));
  const nfs = stack.use(await startGanesha({ exports: [{ path: exported.path, tag: 'bench' }], signal }));
  const stowage = stack.use(await startServer(folder, signal, ['--csi', at('csi')]));
  const { host, nfsPort, mountPort } = nfs;
  const uri = `nfs://${host}${exported.path}?port=${nfsPort}&mountport=${mountPort}`;
  await command([program, '--socket', stowage.socket, 'store', 'add', 'silver', uri], signal);
  stack.use(await startBareDriver([at('bare.sock'), at('sources'), at('own'), at('idle.sock')]));
  const driver = stack.use(grpcClient(at('bare.sock')));
  const answers = stack.use(grpcClient(at('idle.sock')));
  const local = stack.use(grpcClient(at('csi', 'local.sock')));
  const file = stack.use(grpcClient(at('csi', 'file.sock')));

  const ids: Record<CsiSide, string[]> = { local: [], nfs: [], driver: [], answers: [] };
  for (let i = 0; i < volumes; i++) {
    ids.local.push(await created(local, `v${i}`, single));
    ids.nfs.push(await created(file, `v${i}`, capability));
    for (const side of ['driver', 'answers'] as const) ids[side].push(`v${i}`);
    await mkdir(at('sources', `v${i}`), { recursive: true });
    for (const side of sides)
      for (const part of ['staging', 'pods']) await mkdir(at(side, part, `v${i}`), { recursive: true });
  }
  for (const side of ['own', ...sides]) await mkdir(at(side, 'own'), { recursive: true });

  const places = (side: Side, i: number): Places => ({
    staging: at(side, 'staging', `v${i}`),
    target: at(side, 'pods', `v${i}`, 'mount'),
  });
  const clients: Readonly<Record<CsiSide, GrpcClient>> = { local, nfs: file, driver, answers };
  const isAsked = (side: Side): side is CsiSide => Object.hasOwn(clients, side);
  const capabilityOf = (side: Side) => (side === 'nfs' ? capability : single);

  async function ask(side: CsiSide, i: number): Promise<void> {
    const { staging: stagingTargetPath, target: targetPath } = places(side, i);
    const common = { volumeId: ids[side][i] ?? '', stagingTargetPath, volumeCapability: capabilityOf(side) };
    await clients[side].call(method.nodeStageVolume, common);
    await clients[side].call(method.nodePublishVolume, { ...common, targetPath });
  }

  async function make(side: 'calls' | 'programs', i: number): Promise<void> {
    const { staging, target } = places(side, i);
    const [source, own, staged] = [at('sources', `v${i}`), at(side, 'own', `v${i}`), join(staging, 'volume')];
    if (side === 'calls') {
      createBareMounts.stage(source, own, staged);
      createBareMounts.publish(own, target);
      return;
    }
    for (const place of [own, staged, target]) await mkdir(place);
    await command(['mount', '-o', 'bind,nosuid,nodev', source, own], signal);
    await command(['mount', '--bind', own, staged], signal);
    await command(['mount', '--bind', own, target], signal);
  }

  const all = stack.move();
  return {
    up: async (side, i) => {
      const since = performance.now();
      await (isAsked(side) ? ask(side, i) : make(side, i));
      return performance.now() - since;
    },
    down: async (side, i) => {
      const { staging: stagingTargetPath, target: targetPath } = places(side, i);
      if (!isAsked(side))
        return createBareMounts.takeDown(targetPath, join(stagingTargetPath, 'volume'), at(side, 'own', `v${i}`));
      const volumeId = ids[side][i] ?? '';
      await clients[side].call(method.nodeUnpublishVolume, { volumeId, targetPath });
      await clients[side].call(method.nodeUnstageVolume, { volumeId, stagingTargetPath });
    },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

/**
 * A disk image in memory: a real disk varies in speed, and tmpfs does not support RWF_NOWAIT, so that every read there
 * takes the slow path. Not ext4, which does not reuse an inode within five seconds after its deletion, and scans all
 * such inodes to create a folder: that scan would dominate a measurement that creates and removes folders repeatedly.
 */
async function diskInMemory(scratch: ScratchFolder, signal: AbortSignal): Promise<string> {
  await command(['mount', '-t', 'tmpfs', 'stowage-bench', scratch.folder], signal);
  const folder = join(scratch.folder, 'disk');
  await mkdir(folder);
  mountImage(scratch.image('image', imageMiB, 'xfs'), folder);
  // Other users may enter the folders, because the data path runs as nobody.
  for (const path of [scratch.folder, folder]) await chmod(path, 0o755);
  return folder;
}

async function created(client: GrpcClient, name: string, volumeCapability: typeof capability | typeof single) {
  const request = { name, volumeCapabilities: [volumeCapability], capacityRange: { requiredBytes: 1n << 30n } };
  const { volume } = await client.call(Controller.method.createVolume, request);
  return volume?.volumeId ?? '';
}

async function startBareDriver(words: readonly string[]): Promise<AsyncDisposable> {
  const child = spawn(process.execPath, [bareDriver, ...words], { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(child, 'exit');
  await Promise.race([
    once(child.stdout, 'data'),
    ended.then(() => Promise.reject(new Error('the bare driver ended'))),
  ]);
  return {
    [Symbol.asyncDispose]: async () => {
      child.kill('SIGKILL');
      await ended;
    },
  };
}
