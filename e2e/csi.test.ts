import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { mounted } from '#testing/csi.ts';
import { type GrpcClient, grpcClient } from '#testing/grpc-client.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { Controller, Node } from '#wire/csi/generated/csi.ts';
import { type Stowage, startStowage } from './stowage.ts';

const gib = 1n << 30n;

interface TestNode {
  readonly stowage: Stowage;
  readonly file: GrpcClient;
  readonly local: GrpcClient;
  path(name: string): string;
}

let folder: string;

beforeEach(() => {
  // This hook runs after the test's own hooks. It removes the mounts that a failed test left.
  const scratch = createScratchFolder('stowage-csi-');
  onTestFinished(() => scratch[Symbol.dispose]());
  folder = scratch.folder;
});

/** Starts a Stowage with its own state, and a folder for staging and target paths, like a node. */
async function startNode(name: string, uri: string): Promise<TestNode> {
  const top = join(folder, name);
  mkdirSync(join(top, 'stage'), { recursive: true });
  const config = join(top, 'stowage.yaml');
  writeFileSync(config, JSON.stringify({ version: 1, stores: { tested: uri } }));
  const options = ['--plugins', 'none', '--csi', join(top, 'csi')];
  const stowage = await startStowage({ state: join(top, 'state'), config, options });
  onTestFinished(() => stowage.stop());
  const client = (kind: string): GrpcClient => {
    const grpc = grpcClient(join(top, 'csi', `${kind}.sock`));
    onTestFinished(() => grpc.session.destroy());
    return grpc;
  };
  return { stowage, file: client('file'), local: client('local'), path: (name) => join(top, name) };
}

async function create(client: GrpcClient, mode: Parameters<typeof mounted>[0]): Promise<string> {
  const { volume } = await client.call(Controller.method.createVolume, {
    name: 'pvc-1',
    volumeCapabilities: [mounted(mode)],
    capacityRange: { requiredBytes: gib },
  });
  return volume?.volumeId ?? '';
}

describe.skipIf(lacks('ganesha', 'fuse', 'root', 'mount'))('two nodes with one NFS store', () => {
  let one: TestNode;
  let other: TestNode;

  beforeEach(async () => {
    const exported = join(folder, 'export');
    mkdirSync(exported);
    const { signal } = new AbortController();
    const nfs = await startGanesha({ exports: [{ path: exported, tag: '/export', squash: 'none' }], signal });
    onTestFinished(() => nfs[Symbol.asyncDispose]());
    const uri = `nfs://${nfs.host}${exported}?port=${nfs.nfsPort}&mountport=${nfs.mountPort}`;
    one = await startNode('one', uri);
    other = await startNode('other', uri);
  });

  const stage = ({ file, path }: TestNode, volumeId: string, mode: Parameters<typeof mounted>[0]) => {
    onTestFinished(() =>
      unstage({ file, path }, volumeId).then(
        () => undefined,
        () => undefined,
      ),
    );
    const volumeCapability = mounted(mode);
    return file.call(Node.method.nodeStageVolume, { volumeId, stagingTargetPath: path('stage'), volumeCapability });
  };
  const unstage = ({ file, path }: Pick<TestNode, 'file' | 'path'>, volumeId: string) =>
    file.call(Node.method.nodeUnstageVolume, { volumeId, stagingTargetPath: path('stage') });

  test('use a single-node volume one after the other, and a multi-node volume at the same time', async () => {
    const single = 'SINGLE_NODE_WRITER';
    const volumeId = await create(one.file, single);
    expect(await create(other.file, single)).toBe(volumeId);
    for (let i = 0; i < 2; i++) await stage(one, volumeId, single);
    writeFileSync(join(one.path('stage/volume'), 'file'), 'text');
    await expect(stage(other, volumeId, single)).rejects.toMatchObject({
      code: 9,
      message: expect.stringMatching(
        /^volume 'tested\/pvc-1' is written by host .*, and only one host may write to it\./,
      ),
    });
    await unstage(one, volumeId);
    await stage(other, volumeId, single);
    expect(readFileSync(join(other.path('stage/volume'), 'file'), 'utf8')).toBe('text');
    await expect(stage(one, volumeId, single)).rejects.toMatchObject({ code: 9 });
    await expect(one.file.call(Controller.method.deleteVolume, { volumeId })).rejects.toMatchObject({ code: 9 });
    await unstage(other, volumeId);
    await stage(one, volumeId, 'MULTI_NODE_MULTI_WRITER');
    await stage(other, volumeId, 'MULTI_NODE_MULTI_WRITER');
    await unstage(one, volumeId);
    await unstage(other, volumeId);
    await one.file.call(Controller.method.deleteVolume, { volumeId });
    expect((await other.file.call(Controller.method.listVolumes, {})).entries).toEqual([]);
  }, 120_000);

  test('keep a single-node volume reserved for a killed node until it is back', async () => {
    const volumeId = await create(one.file, 'SINGLE_NODE_WRITER');
    await stage(one, volumeId, 'SINGLE_NODE_WRITER');
    one.stowage.signal('SIGKILL');
    await one.stowage.ended();
    await expect(stage(other, volumeId, 'SINGLE_NODE_WRITER')).rejects.toMatchObject({ code: 9 });
    const config = one.path('stowage.yaml');
    const options = ['--plugins', 'none', '--csi', one.path('csi')];
    const restarted = await startStowage({ state: one.path('state'), config, options });
    onTestFinished(() => restarted.stop());
    const file = grpcClient(one.path('csi/file.sock'));
    onTestFinished(() => file.session.destroy());
    await unstage({ file, path: one.path }, volumeId);
    await stage(other, volumeId, 'SINGLE_NODE_WRITER');
  }, 120_000);
});

describe.skipIf(lacks('mount'))('an ephemeral inline volume', () => {
  test('is deleted with its pod, also after a kill at any moment', async () => {
    const store = join(folder, 'store');
    mkdirSync(store);
    const volumeId = `csi-${'1'.repeat(64)}`;
    const volumeContext = { 'csi.storage.k8s.io/ephemeral': 'true', size: '16M' };
    const request = { volumeId, targetPath: join(folder, 'target'), volumeCapability: mounted(), volumeContext };
    for (const afterMs of [0, 5, 20, undefined]) {
      const before = await startNode('one', `local://${store}`);
      const publishing = before.local.call(Node.method.nodePublishVolume, request).catch(() => undefined);
      if (afterMs === undefined) await publishing;
      // The kill interrupts whatever the server does at that moment.
      else await new Promise((resolve) => setTimeout(resolve, afterMs));
      before.stowage.signal('SIGKILL');
      await before.stowage.ended();
      await publishing;
      const after = await startNode('one', `local://${store}`);
      await after.local.call(Node.method.nodePublishVolume, request);
      await after.local.call(Node.method.nodeUnpublishVolume, request);
      expect((await after.local.call(Controller.method.listVolumes, {})).entries).toEqual([]);
      expect((await after.stowage.api('GET', '/v1/mounts')).body['items']).toEqual([]);
      expect(existsSync(request.targetPath)).toBe(false);
      await after.stowage.stop();
    }
  }, 120_000);
});
