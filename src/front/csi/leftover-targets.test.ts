import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { VolumeId } from '#core/model.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { blockDevice, mounted, servedCsi } from '#testing/csi.ts';
import type { GrpcClient } from '#testing/grpc-client.ts';
import { Controller, Node } from '#wire/csi/generated/csi.ts';

const csi = servedCsi();
const { method } = Node;
let local: GrpcClient;
let volumeId: string;

const at = (name: string): string => join(csi.folder, name);

async function create(name: string, more: object = {}): Promise<string> {
  const request = { name, volumeCapabilities: [mounted()], capacityRange: { requiredBytes: 64n << 20n }, ...more };
  const { volume } = await local.call(Controller.method.createVolume, request);
  return volume?.volumeId ?? '';
}

beforeEach(async () => {
  local = await csi.start('local');
  volumeId = await create('pvc-1');
  mkdirSync(at('stage'));
  onTestFinished(async () => {
    await unstage();
  });
});

const stage = (volumeCapability = mounted()) =>
  local.call(method.nodeStageVolume, { volumeId, stagingTargetPath: at('stage'), volumeCapability });
const unstage = (id = volumeId) =>
  local.call(method.nodeUnstageVolume, { volumeId: id, stagingTargetPath: at('stage') });
const unpublish = (name: string, id = volumeId) =>
  local.call(method.nodeUnpublishVolume, { volumeId: id, targetPath: at(name) });

/** The kubelet removes the folder next, which fails as long as the folder is not empty. */
describe.skipIf(lacks('mount'))('NodeUnstageVolume leaves an empty folder', () => {
  test('if a user unmounted the volume, and it was staged again', async () => {
    await stage();
    execFileSync('umount', [at('stage/volume')]);
    await stage();
    await unstage();
    expect(readdirSync(at('stage'))).toEqual([]);
  });

  test('if a mount point is left that is not on record', async () => {
    mkdirSync(at('stage/volume'));
    await stage();
    await unstage();
    expect(readdirSync(at('stage'))).toEqual([]);
  });

  test.each(['by its id', 'by its name', 'that is no longer on record'])(
    'where only the volume was mounted, of a volume %s',
    async (which) => {
      const id = which === 'by its name' ? 'local..pvc-1' : volumeId;
      if (which.includes('no longer')) csi.server.core.records.volumes.remove(volumeId as VolumeId);
      mkdirSync(at('stage/volume'));
      writeFileSync(at('stage/device'), '');
      for (let i = 0; i < 2; i++) await unstage(id);
      expect(readdirSync(at('stage'))).toEqual([]);
    },
  );

  test('but keeps files that a user put there', async () => {
    mkdirSync(at('stage/volume/theirs'), { recursive: true });
    writeFileSync(at('stage/device'), 'text');
    writeFileSync(at('stage/other'), '');
    await unstage();
    expect(readdirSync(at('stage')).toSorted()).toEqual(['device', 'other', 'volume']);
  });
});

describe.skipIf(lacks('mount'))('NodeUnpublishVolume removes the target', () => {
  const publish = (name: string, more: object = {}) =>
    local.call(method.nodePublishVolume, {
      volumeId,
      stagingTargetPath: at('stage'),
      targetPath: at(name),
      volumeCapability: mounted(),
      ...more,
    });

  test.each(['a user had unmounted the volume', 'the folder was there before'])('also if %s', async (why) => {
    await stage();
    if (why.includes('before')) mkdirSync(at('pod'));
    await publish('pod');
    if (why.includes('unmounted')) execFileSync('umount', [at('pod')]);
    await publish('pod');
    await unpublish('pod');
    expect(existsSync(at('pod'))).toBe(false);
  });

  test.skipIf(lacks('loop'))('also of a device that a user had unmounted', async () => {
    await csi.server.core.stores.add('disks', `local://${mkdtempSync(at('images-'))}?layout=image`, aCall());
    const volumeCapability = blockDevice();
    volumeId = await create('disk', { volumeCapabilities: [volumeCapability], parameters: { store: 'disks' } });
    await stage(volumeCapability);
    await publish('dev', { volumeCapability });
    for (const name of ['dev', 'stage/device']) execFileSync('umount', [at(name)]);
    await stage(volumeCapability);
    await publish('dev', { volumeCapability });
    await unpublish('dev');
    await unstage();
    expect([existsSync(at('dev')), readdirSync(at('stage'))]).toEqual([false, []]);
  });

  test('without a record, removes an empty mount point and nothing else', async () => {
    mkdirSync(at('folder'));
    writeFileSync(at('file'), '');
    mkdirSync(at('full/theirs'), { recursive: true });
    writeFileSync(at('written'), 'text');
    const names = ['folder', 'file', 'full', 'written', 'missing', 'missing/below', '..'];
    for (const id of [volumeId, 'local..pvc-1', 'csi-1'])
      for (const name of names)
        await local.call(method.nodeUnpublishVolume, { volumeId: id, targetPath: `${csi.folder}/${name}` });
    expect(names.filter((name) => existsSync(at(name)) && !name.includes('..'))).toEqual(['full', 'written']);
  });

  test('but not a target with a mount, and nothing that cannot be a mount point', async () => {
    mkdirSync(at('theirs'));
    execFileSync('mount', ['-t', 'tmpfs', 'none', at('theirs')]);
    onTestFinished(() => void execFileSync('umount', [at('theirs')]));
    await unpublish('theirs');
    expect(existsSync(at('theirs'))).toBe(true);
    // The data of a volume that is still empty.
    const data = join(csi.server.storeFolder, 'pvc-1');
    await local.call(method.nodeUnpublishVolume, { volumeId, targetPath: data });
    expect(existsSync(data)).toBe(true);
  });

  test('removes the target of an inline volume whose mount is no longer on record', async () => {
    const volumeContext = { 'csi.storage.k8s.io/ephemeral': 'true', store: 'local' };
    await publish('pod', { volumeId: 'csi-1', volumeContext });
    execFileSync('umount', [at('pod')]);
    await csi.server.core.mounts.reconcile(aCall());
    mkdirSync(at('pod'));
    await unpublish('pod', 'csi-1');
    expect(existsSync(at('pod'))).toBe(false);
  });
});
