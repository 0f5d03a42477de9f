import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { VolumeId } from '#core/model.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { blockDevice, mounted, servedCsi } from '#testing/csi.ts';
import type { GrpcClient } from '#testing/grpc-client.ts';
import { startServer } from '#testing/server.ts';
import { Controller, Node, NodeServiceCapability_RPC_Type as Rpc } from '#wire/csi/generated/csi.ts';

const csi = servedCsi();
const { method } = Node;
const mib = 1n << 20n;
let local: GrpcClient;
let file: GrpcClient;

beforeEach(async () => {
  local = await csi.start('local');
  file = await csi.start('file');
});

const at = (name: string): string => join(csi.folder, name);

async function create(name: string, more: object = {}): Promise<string> {
  const request = { name, volumeCapabilities: [mounted()], capacityRange: { requiredBytes: 64n * mib }, ...more };
  const { volume } = await local.call(Controller.method.createVolume, request);
  return volume?.volumeId ?? '';
}

test('NodeGetInfo returns the name, the topology and the limit of the node', async () => {
  const { node } = csi.server.core;
  const topology = { segments: { 'local.stowage.dev/node': node } };
  expect(await local.call(method.nodeGetInfo, {})).toMatchObject({
    nodeId: node,
    maxVolumesPerNode: 1000n,
    accessibleTopology: topology,
  });
  expect((await file.call(method.nodeGetInfo, {})).accessibleTopology).toBeUndefined();
  expect((await local.call(method.nodeGetCapabilities, {})).capabilities).toHaveLength(7);
  // A local file system can only show the group that its files have, so there the kubelet changes the group.
  const says = async (driver: GrpcClient): Promise<boolean> =>
    (await driver.call(method.nodeGetCapabilities, {})).capabilities.some(
      ({ type }) => type.case === 'rpc' && type.value.type === Rpc.VOLUME_MOUNT_GROUP,
    );
  expect([await says(file), await says(local)]).toEqual([true, false]);
  expect((await file.call(method.nodeGetStorageHealth, {})).backendHealth).toEqual([]);
});

test('unreachable stores are reported, with one entry for each reason', async () => {
  const silent = (store: string): string => `the server of store '${store}' does not answer`;
  const reportedHealth = async () => (await file.call(method.nodeGetStorageHealth, {})).backendHealth;
  await csi.server.core.stores.add('tin', `nfs://server${mkdtempSync(at('tin-'))}`, aCall());
  const pings = [csi.nfs.close('ping', { deaf: true, store: 'silver' })];
  expect(await reportedHealth()).toMatchObject([{ status: 2, reason: 'StoreSilent', message: silent('silver') }]);
  for (const ping of pings.splice(0)) ping.open();
  pings.push(csi.nfs.close('ping', { deaf: true }));
  // CSI: each pair of status and reason may occur only once.
  await expect
    .poll(reportedHealth)
    .toMatchObject([{ status: 2, reason: 'StoreSilent', message: `${silent('silver')}; ${silent('tin')}` }]);
  for (const ping of pings) ping.open();
});

test('a recorded volume is rejected without a call to its store, and a deleted one is not found', async () => {
  const volumeCapabilities = [mounted('MULTI_NODE_MULTI_WRITER')];
  const request = { name: 'shared', volumeCapabilities, capacityRange: { requiredBytes: 64n * mib } };
  const { volume } = await file.call(Controller.method.createVolume, request);
  const volumeId = volume?.volumeId ?? '';
  const stage = { volumeId, stagingTargetPath: at('stage'), volumeCapability: blockDevice('MULTI_NODE_MULTI_WRITER') };
  const get = csi.nfs.close('get');
  await expect(file.call(method.nodeStageVolume, stage)).rejects.toMatchObject({ code: 3 });
  expect(get.waiting()).toBe(0);
  get.open();
  await csi.server.core.stores.use('silver', async (store) => {
    const { records } = csi.server.core;
    const known = records.volumes.byId(volumeId as Parameters<typeof records.volumes.byId>[0]);
    if (known !== undefined) await store.delete(known, aCall());
  });
  const again = { ...stage, volumeCapability: mounted('MULTI_NODE_MULTI_WRITER') };
  await expect(file.call(method.nodeStageVolume, again)).rejects.toMatchObject({ code: 5 });
});

describe('missing fields are reported first', () => {
  const volumeCapability = mounted();
  const stagingTargetPath = '/nowhere/stage';
  test.each([
    ['nodeStageVolume', {}, 'volume_id is missing'],
    ['nodeStageVolume', { volumeId: 'x' }, 'staging_target_path is missing'],
    ['nodeStageVolume', { volumeId: 'x', stagingTargetPath }, 'volume_capability is missing'],
    [
      'nodeStageVolume',
      { volumeId: 'x', stagingTargetPath: 'a', volumeCapability },
      'staging_target_path is not an absolute path',
    ],
    ['nodeUnstageVolume', {}, 'volume_id is missing'],
    ['nodeUnstageVolume', { volumeId: 'x' }, 'staging_target_path is missing'],
    ['nodePublishVolume', {}, 'volume_id is missing'],
    ['nodePublishVolume', { volumeId: 'x' }, 'target_path is missing'],
    ['nodePublishVolume', { volumeId: 'x', targetPath: '/a' }, 'volume_capability is missing'],
    ['nodeUnpublishVolume', {}, 'volume_id is missing'],
    ['nodeUnpublishVolume', { volumeId: 'x' }, 'target_path is missing'],
    ['nodeGetVolumeStats', {}, 'volume_id is missing'],
    ['nodeGetVolumeStats', { volumeId: 'x' }, 'volume_path is missing'],
    ['nodeExpandVolume', {}, 'volume_id is missing'],
    ['nodeExpandVolume', { volumeId: 'x' }, 'volume_path is missing'],
  ] as const)('%s %o', async (name, request, message) => {
    await expect(local.call(method[name], request)).rejects.toMatchObject({
      code: 3,
      message: expect.stringContaining(message),
    });
  });

  test('then a missing staging path, then a missing volume', async () => {
    const request = { volumeId: 'x', targetPath: '/a', volumeCapability };
    await expect(local.call(method.nodePublishVolume, request)).rejects.toMatchObject({ code: 9 });
    const staged = { ...request, stagingTargetPath };
    await expect(local.call(method.nodePublishVolume, staged)).rejects.toMatchObject({ code: 5 });
    await expect(local.call(method.nodeStageVolume, staged)).rejects.toMatchObject({ code: 5 });
    await local.call(method.nodeUnpublishVolume, request);
    await local.call(method.nodeUnstageVolume, staged);
  });
});

describe.skipIf(lacks('mount'))('a volume', () => {
  let volumeId: string;
  const stagingTargetPath = (): string => at('stage');

  beforeEach(async () => {
    volumeId = await create('pvc-1');
    mkdirSync(at('stage'));
  });

  const stage = (volumeCapability = mounted()) =>
    local.call(method.nodeStageVolume, { volumeId, stagingTargetPath: stagingTargetPath(), volumeCapability });
  const unstage = () => local.call(method.nodeUnstageVolume, { volumeId, stagingTargetPath: stagingTargetPath() });
  const publish = (name: string, more: object = {}) => {
    onTestFinished(async () => {
      await unpublish(name).catch(() => undefined);
      await unstage().catch(() => undefined);
    });
    const request = { volumeId, stagingTargetPath: stagingTargetPath(), targetPath: at(name) };
    return local.call(method.nodePublishVolume, { ...request, volumeCapability: mounted(), ...more });
  };
  const unpublish = (name: string) => local.call(method.nodeUnpublishVolume, { volumeId, targetPath: at(name) });

  test('is staged, published, written to, unpublished and unstaged, each call twice', async () => {
    for (let i = 0; i < 2; i++) await stage();
    for (let i = 0; i < 2; i++) await publish('pod');
    writeFileSync(join(at('pod'), 'file'), 'text');
    expect(readFileSync(join(at('stage/volume'), 'file'), 'utf8')).toBe('text');
    // The kubelet would look for other mounts of the same file system, find ours, and never unstage the volume.
    expect(readFileSync('/proc/self/mountinfo', 'utf8')).not.toContain(` ${at('stage')} `);
    for (let i = 0; i < 2; i++) await unpublish('pod');
    expect(existsSync(at('pod'))).toBe(false);
    for (let i = 0; i < 2; i++) await unstage();
    expect(await csi.server.core.mounts.list(aCall())).toEqual([]);
    expect(existsSync(at('stage'))).toBe(true);
  });

  test('is mounted read-only for each way to request that', async () => {
    await stage();
    await publish('reader', { readonly: true });
    await publish('flag', { volumeCapability: mounted('SINGLE_NODE_WRITER', ['ro']) });
    await publish('mode', { volumeCapability: mounted('SINGLE_NODE_READER_ONLY') });
    for (const name of ['reader', 'flag', 'mode'])
      expect(() => writeFileSync(join(at(name), 'file'), 'x')).toThrow('EROFS');
    await expect(publish('reader')).rejects.toMatchObject({ code: 6 });
  });

  test('is refused to a second pod if only one may use it, and the error names the first', async () => {
    const volumeCapability = mounted('SINGLE_NODE_SINGLE_WRITER');
    await stage(volumeCapability);
    const volumeContext = { 'csi.storage.k8s.io/pod.name': 'web-0', 'csi.storage.k8s.io/pod.namespace': 'team-a' };
    for (let i = 0; i < 2; i++) await publish('pod', { volumeCapability, volumeContext });
    await expect(publish('other', { volumeCapability })).rejects.toMatchObject({
      code: 9,
      message: expect.stringContaining(
        "volume 'local/pvc-1' is used by pod team-a/web-0, and its access mode allows a single pod",
      ),
    });
    expect(existsSync(at('other'))).toBe(false);
    await unpublish('pod');
    await publish('other', { volumeCapability });
  });

  test('is refused to a pod with a user namespace and leaves nothing behind; is allowed if that is not known', async () => {
    await stage();
    const about = { name: 'web-0', namespace: 'team-a', uid: 'u-1' };
    const volumeContext = Object.fromEntries(
      Object.entries(about).map(([key, value]) => [`csi.storage.k8s.io/pod.${key}`, value]),
    );
    csi.users = 'own';
    await expect(publish('pod', { volumeContext })).rejects.toMatchObject({
      code: 9,
      message: expect.stringContaining("pod 'team-a/web-0' has a user namespace"),
    });
    expect(existsSync(at('pod'))).toBe(false);
    for (const users of ['host', undefined] as const) {
      csi.users = users;
      await publish(`pod-${users}`, { volumeContext });
    }
  });

  test('is not deleted while a pod uses it', async () => {
    await stage();
    await publish('pod');
    await expect(local.call(Controller.method.deleteVolume, { volumeId })).rejects.toMatchObject({ code: 9 });
  });

  test('has its own usage and a condition', async () => {
    await stage();
    await publish('pod');
    writeFileSync(join(at('pod'), 'file'), Buffer.alloc(8192, 1));
    const volumePath = at('pod');
    csi.space = { totalBytes: 1n << 40n, freeBytes: 1n << 39n, files: 100n, freeFiles: 90n };
    const { usage, volumeCondition } = await local.call(method.nodeGetVolumeStats, { volumeId, volumePath });
    const [bytes, files] = usage;
    expect(bytes).toMatchObject({ unit: 1, total: 64n * mib });
    expect(bytes?.used).toBeGreaterThanOrEqual(8192n);
    expect((bytes?.used ?? 0n) + (bytes?.available ?? 0n)).toBe(64n * mib);
    expect(files).toMatchObject({ unit: 2, available: 90n });
    expect(volumeCondition).toMatchObject({ abnormal: false });
    const elsewhere = local.call(method.nodeGetVolumeStats, { volumeId, volumePath: 'some/path' });
    await expect(elsewhere).rejects.toMatchObject({ code: 5 });
    csi.space = { totalBytes: 1n << 40n, freeBytes: 5n, files: 100n, freeFiles: 90n };
    const little = await local.call(method.nodeGetVolumeStats, { volumeId, volumePath });
    expect(little.usage[0]?.available).toBe(5n);
    const { volumeHealth } = await local.call(method.nodeGetVolumeHealth, { volumeId });
    expect(volumeHealth).toMatchObject({ volumeId, healthStatuses: [] });
  });

  test('has the usage of the file system around it until a slow count ends, then its own', async () => {
    await stage();
    await publish('pod');
    writeFileSync(join(at('pod'), 'file'), Buffer.alloc(8192, 1));
    const gate = csi.local.close('usage', { deaf: true });
    const stats = async () => (await local.call(method.nodeGetVolumeStats, { volumeId, volumePath: at('pod') })).usage;
    expect(await stats()).toMatchObject([
      { unit: 1, total: 1000n, used: 400n, available: 600n },
      { unit: 2, total: 100n, used: 10n, available: 90n },
    ]);
    gate.open();
    await expect.poll(async () => (await stats())[0]).toMatchObject({ total: 64n * mib, available: 600n });
    expect(gate.waiting()).toBe(1);
  });

  test('that a user unmounted has no usage, and its condition says that it is not mounted', async () => {
    await stage();
    await publish('pod');
    execFileSync('umount', [at('pod')]);
    await expect(local.call(method.nodeGetVolumeStats, { volumeId, volumePath: at('pod') })).rejects.toMatchObject({
      code: 5,
      message: expect.stringContaining("volume 'local/pvc-1' is not mounted at"),
    });
    const { volumeHealth } = await local.call(method.nodeGetVolumeHealth, { volumeId });
    expect(volumeHealth?.healthStatuses).toMatchObject([
      { reason: 'Unmounted', message: expect.stringContaining('somebody unmounted it') },
    ]);
  });

  test.each([
    ['dead', 'MountDead', 'nothing serves the mount at the moment'],
    ['client-failing', 'ClientFailing', 'the client that serves the mount does not answer'],
  ] as const)('whose mount is %s is not told to be well', async (state, reason, detail) => {
    await stage();
    await publish('pod');
    const { core } = csi.server;
    const health = { state, detail, repairedAt: undefined };
    const other = await csi.start('local', {
      mountHealth: async (scope, only) => (await core.mountHealth(scope, only)).map((one) => ({ ...one, health })),
    });
    const stats = await other.call(method.nodeGetVolumeStats, { volumeId, volumePath: at('pod') });
    expect(stats.volumeCondition).toMatchObject({ abnormal: true, message: detail });
    const { volumeHealth } = await other.call(method.nodeGetVolumeHealth, { volumeId });
    expect(volumeHealth?.healthStatuses).toMatchObject([{ reason, message: detail }]);
  });

  test('is found through symbolic links, at its target and at its staging path', async () => {
    await stage();
    await publish('pod');
    symlinkSync(csi.folder, at('kubelet'));
    symlinkSync('pod', at('pod-link'));
    for (const name of ['kubelet/pod', 'kubelet/stage', 'kubelet/pod-link', 'pod-link']) {
      const path = { volumeId, volumePath: at(name) };
      const { usage, volumeCondition } = await local.call(method.nodeGetVolumeStats, path);
      expect(usage[0]).toMatchObject({ unit: 1, total: 64n * mib });
      expect(volumeCondition).toMatchObject({ abnormal: false });
      expect(await local.call(method.nodeExpandVolume, path)).toMatchObject({ capacityBytes: 64n * mib });
    }
    for (const name of ['kubelet', 'kubelet/other', 'kubelet/other/pod'])
      await expect(local.call(method.nodeGetVolumeStats, { volumeId, volumePath: at(name) })).rejects.toMatchObject({
        code: 5,
      });
  });

  test('is found without resolving links if the path matches', async () => {
    await stage();
    await publish('pod');
    const never = async (): Promise<never> => {
      throw new Error('it was looked for');
    };
    const { mounts } = csi.server.core;
    const other = await csi.start('local', { mounts: { ...mounts, resolvePath: never } });
    for (const name of ['pod', 'stage'])
      await other.call(method.nodeGetVolumeStats, { volumeId, volumePath: at(name) });
    await other.call(method.nodeUnstageVolume, { volumeId, stagingTargetPath: at('stage') });
    expect((await mounts.list(aCall())).map(({ target }) => target)).toEqual([at('pod')]);
  });

  test('is not reported as unmounted if its path is on a disk or server that does not answer', async () => {
    await stage();
    await publish('pod');
    const { mounts } = csi.server.core;
    const locate = async (path: string): Promise<never> => {
      throw new StowageError(`${path} cannot be looked at`, {
        code: 'unavailable',
        reason: 'path-no-answer',
        action: 'Wait.',
      });
    };
    const other = await csi.start('local', { mounts: { ...mounts, resolvePath: locate } });
    const stats = other.call(method.nodeGetVolumeStats, { volumeId, volumePath: at('link/pod') });
    await expect(stats).rejects.toMatchObject({ code: 14 });
  });

  test('reports the size that its store gave it', async () => {
    await stage();
    await publish('pod');
    const expand = (requiredBytes: bigint) =>
      local.call(method.nodeExpandVolume, { volumeId, volumePath: at('pod'), capacityRange: { requiredBytes } });
    expect(await expand(64n * mib)).toMatchObject({ capacityBytes: 64n * mib });
    await expect(expand(65n * mib)).rejects.toMatchObject({ code: 11 });
  });

  test('can be identified by store and name, too', async () => {
    volumeId = 'local..pvc-1';
    await stage();
    await publish('pod');
    await unpublish('pod');
    await unstage();
    expect(await csi.server.core.mounts.list(aCall())).toEqual([]);
  });

  test.each(['is no longer on record', 'has given its name to another'])(
    'identified by store and name is unpublished from its target, also when it %s',
    async (what) => {
      const { volumes } = csi.server.core.records;
      const known = volumes.byId(volumeId as VolumeId);
      volumeId = 'local..pvc-1';
      await stage();
      await publish('pod');
      if (known === undefined) throw new Error('it is not on record');
      volumes.remove(known.id);
      if (what.includes('another')) volumes.put({ ...known, id: `sv1-${randomUUID()}` as VolumeId });
      await unpublish('pod');
      await unstage();
      expect(await csi.server.core.mounts.list(aCall())).toEqual([]);
      expect(readFileSync('/proc/self/mountinfo', 'utf8')).not.toContain(csi.folder);
    },
  );

  test('stays mounted when Stowage stops, and the next Stowage unpublishes it', async () => {
    await stage();
    await publish('pod');
    writeFileSync(join(at('pod'), 'file'), 'text');
    expect((await csi.server.stop()).toSorted()).toEqual([
      `${at('pod')} (pod unknown uses it)`,
      `${at('stage/volume')} (kubelet local.stowage.dev uses it)`,
    ]);
    expect(readFileSync(join(at('pod'), 'file'), 'utf8')).toBe('text');
    csi.server = await startServer({ listen: 'none', kinds: [csi.local, csi.nfs], folder: csi.server.folder });
    onTestFinished(() => csi.server[Symbol.asyncDispose]());
    rmSync(at('local.sock'), { force: true });
    local = await csi.start('local');
    await unpublish('pod');
    await unstage();
    expect(await csi.server.core.mounts.list(aCall())).toEqual([]);
  });

  test('is published and unpublished without a call to its store while it is staged', async () => {
    await stage();
    const gates = (['get', 'source', 'names', 'usage'] as const).map((verb) => csi.local.close(verb));
    await publish('pod');
    writeFileSync(join(at('pod'), 'file'), 'text');
    expect(readFileSync(join(at('stage/volume'), 'file'), 'utf8')).toBe('text');
    await unpublish('pod');
    await unstage();
    for (const gate of gates) gate.open();
  });

  test('defined inline in a pod is created and deleted with the pod', async () => {
    const volumeContext = { 'csi.storage.k8s.io/ephemeral': 'true', store: 'local', size: '16Mi' };
    volumeId = `csi-${'0'.repeat(64)}`;
    for (let i = 0; i < 2; i++) await publish('inline', { volumeContext, stagingTargetPath: '' });
    writeFileSync(join(at('inline'), 'file'), 'text');
    const listed = await local.call(Controller.method.listVolumes, {});
    expect(listed.entries.map(({ volume }) => volume?.volumeContext['name'])).toEqual([volumeId, 'pvc-1']);
    const stats = await local.call(method.nodeGetVolumeStats, { volumeId, volumePath: at('inline') });
    expect(stats.usage[0]).toMatchObject({ total: 16n * mib });
    for (let i = 0; i < 2; i++) await unpublish('inline');
    expect((await local.call(Controller.method.listVolumes, {})).entries).toHaveLength(1);
    const wrong = { ...volumeContext, colour: 'red' };
    await expect(publish('inline', { volumeContext: wrong })).rejects.toMatchObject({ code: 3 });
    const device = { volumeContext, volumeCapability: blockDevice() };
    await expect(publish('inline', device)).rejects.toMatchObject({ code: 3 });
  });
});

describe('a requested file system that differs from that of the volume', () => {
  const capability = (fsType: string) => mounted('SINGLE_NODE_WRITER', [], fsType);
  const tried = (client: GrpcClient, store: string, fsType: string, name: string) =>
    client.call(Controller.method.createVolume, {
      name,
      volumeCapabilities: [capability(fsType)],
      parameters: { store },
      capacityRange: { requiredBytes: 64n * mib },
    });

  test('is always refused for directories', async () => {
    for (const [client, store] of [
      [local, 'local'],
      [file, 'silver'],
    ] as const) {
      await expect(tried(client, store, 'ext4', 'wrong')).rejects.toMatchObject({
        code: 3,
        message: expect.stringContaining(`volumes of store '${store}' are directories`),
      });
      const { volume } = await tried(client, store, '', `right-${store}`);
      const request = { volumeId: volume?.volumeId ?? '', stagingTargetPath: at('stage') };
      mkdirSync(at('stage'), { recursive: true });
      await expect(
        client.call(method.nodeStageVolume, { ...request, volumeCapability: capability('nfs') }),
      ).rejects.toMatchObject({ code: 3, message: expect.stringContaining('fsType must not be set') });
    }
  });

  test.skipIf(lacks('mount', 'loop', 'ext4'))('is refused for images', async () => {
    await csi.server.core.stores.add('disks', `local://${mkdtempSync(at('images-'))}?layout=image`, aCall());
    await expect(tried(local, 'disks', 'xfs', 'disk')).rejects.toMatchObject({
      code: 3,
      message: expect.stringContaining("the volume has the file system 'ext4', not 'xfs'"),
    });
    expect((await local.call(Controller.method.listVolumes, {})).entries).toEqual([]);
    for (const fsType of ['ext4', '', 'ext4']) await tried(local, 'disks', fsType, 'disk');
    const volumeId = (await tried(local, 'disks', '', 'disk')).volume?.volumeId ?? '';
    await expect(tried(local, 'disks', 'xfs', 'disk')).rejects.toMatchObject({ code: 3 });
    const validate = async (fsType: string) =>
      await local.call(Controller.method.validateVolumeCapabilities, {
        volumeId,
        volumeCapabilities: [capability(fsType)],
      });
    expect((await validate('ext4')).confirmed).toBeDefined();
    expect(await validate('xfs')).toMatchObject({ message: expect.stringContaining("not 'xfs'") });
    mkdirSync(at('stage'));
    const staged = { volumeId, stagingTargetPath: at('stage') };
    const stage = (fsType: string) =>
      local.call(method.nodeStageVolume, { ...staged, volumeCapability: capability(fsType) });
    await expect(stage('xfs')).rejects.toMatchObject({ code: 3 });
    await stage('ext4');
    const request = { ...staged, targetPath: at('pod'), volumeCapability: capability('btrfs') };
    await expect(local.call(method.nodePublishVolume, request)).rejects.toMatchObject({ code: 3 });
    await local.call(method.nodeUnstageVolume, staged);
    const volumeContext = { 'csi.storage.k8s.io/ephemeral': 'true', store: 'disks', size: '16M' };
    const inline = {
      volumeId: 'csi-1',
      targetPath: at('inline'),
      volumeCapability: capability('xfs'),
      volumeContext,
    };
    await expect(local.call(method.nodePublishVolume, inline)).rejects.toMatchObject({ code: 3 });
  });
});

describe.skipIf(lacks('mount', 'loop', 'xfs'))('a block volume', () => {
  test('is a device file in the staging folder', async () => {
    const images = mkdtempSync(at('images-'));
    await csi.server.core.stores.add('disks', `local://${images}?layout=image`, aCall());
    const volumeCapability = blockDevice();
    const more = { volumeCapabilities: [volumeCapability], parameters: { store: 'disks' } };
    const volumeId = await create('disk', more);
    mkdirSync(at('stage'));
    const staged = { volumeId, stagingTargetPath: at('stage'), volumeCapability };
    await local.call(method.nodeStageVolume, staged);
    await local.call(method.nodePublishVolume, { ...staged, targetPath: at('dev') });
    expect(statSync(at('dev')).isBlockDevice()).toBe(true);
    const stats = await local.call(method.nodeGetVolumeStats, { volumeId, volumePath: at('dev') });
    expect(stats.usage).toMatchObject([{ unit: 1, total: 64n * mib }]);
    await local.call(method.nodeUnpublishVolume, { volumeId, targetPath: at('dev') });
    expect(existsSync(at('dev'))).toBe(false);
    await local.call(method.nodeUnstageVolume, staged);
    await local.call(Controller.method.deleteVolume, { volumeId });
  });

  test('that is no longer on record is unpublished through a symbolic link, too', async () => {
    await csi.server.core.stores.add('disks', `local://${mkdtempSync(at('images-'))}?layout=image`, aCall());
    const volumeCapability = blockDevice();
    const volumeId = await create('disk', { volumeCapabilities: [volumeCapability], parameters: { store: 'disks' } });
    mkdirSync(at('stage'));
    symlinkSync(csi.folder, at('kubelet'));
    const staged = { volumeId, stagingTargetPath: at('kubelet/stage'), volumeCapability };
    onTestFinished(async () => {
      await local.call(method.nodeUnstageVolume, { ...staged, stagingTargetPath: at('stage') });
    });
    await local.call(method.nodeStageVolume, staged);
    csi.server.core.records.volumes.remove(volumeId as VolumeId);
    await local.call(method.nodeUnstageVolume, staged);
    expect(await csi.server.core.mounts.list(aCall())).toEqual([]);
  });

  test('is refused to a pod that asks for read-only, unless its store is read-only', async () => {
    const uri = `local://${mkdtempSync(at('images-'))}?layout=image`;
    const { stores } = csi.server.core;
    await stores.add('disks', uri, aCall());
    const volumeCapability = blockDevice();
    const volumeId = await create('disk', { volumeCapabilities: [volumeCapability], parameters: { store: 'disks' } });
    mkdirSync(at('stage'));
    const staged = { volumeId, stagingTargetPath: at('stage'), volumeCapability };
    const publish = () =>
      local.call(method.nodePublishVolume, { ...staged, targetPath: at('dev'), readonly: true, volumeCapability });
    onTestFinished(async () => {
      await local.call(method.nodeUnpublishVolume, { volumeId, targetPath: at('dev') });
      await local.call(method.nodeUnstageVolume, staged);
    });
    await local.call(method.nodeStageVolume, staged);
    await expect(publish()).rejects.toMatchObject({
      code: 9,
      message: expect.stringContaining(
        "volume 'disks/disk' is a raw block device, which cannot be published read-only",
      ),
    });
    expect(existsSync(at('dev'))).toBe(false);
    await local.call(method.nodeUnstageVolume, staged);
    await stores.remove('disks', aCall());
    await stores.add('disks', `${uri}&readOnly=true`, aCall());
    await local.call(method.nodeStageVolume, staged);
    await publish();
    expect(() => writeFileSync(at('dev'), 'text')).toThrow('EPERM');
  });
});
