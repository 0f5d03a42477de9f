import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { Volume } from '#core/model.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { mounted, servedCsi } from '#testing/csi.ts';
import type { GrpcClient } from '#testing/grpc-client.ts';
import { Controller, Node } from '#wire/csi/generated/csi.ts';

const csi = servedCsi();
const { method } = Node;
const mib = 1n << 20n;
const volumeId = `csi-${'0'.repeat(64)}`;
let local: GrpcClient;

beforeEach(async () => {
  local = await csi.start('local');
});

const at = (name: string): string => join(csi.folder, name);
const known = (): Volume | undefined => csi.server.core.ephemerals.volume(volumeId);

const request = (attributes: Record<string, string>, name = 'pod') => ({
  volumeId,
  targetPath: at(name),
  volumeCapability: mounted(),
  volumeContext: { 'csi.storage.k8s.io/ephemeral': 'true', ...attributes },
});

/** Sets the store's defaultSize. */
async function setDefaultSize(defaultSize: bigint): Promise<void> {
  const { stores } = csi.server.core;
  const { config } = stores.view('local');
  await stores.configure([{ ...config, policy: { ...config.policy, defaultSize } }], 'local', aCall());
}

/** A kubelet that restarts repeats NodePublishVolume for each running pod. */
describe.skipIf(lacks('mount'))('publishing an inline volume of a running pod again', () => {
  const publish = (attributes: Record<string, string>, more: object = {}) => {
    onTestFinished(async () => {
      await local.call(method.nodeUnpublishVolume, { volumeId, targetPath: at('pod') }).catch(() => undefined);
    });
    return local.call(method.nodePublishVolume, { ...request(attributes), ...more });
  };
  /** The mounted volume with data in it. */
  async function stays(attributes: Record<string, string>, change: (volume: Volume) => Promise<unknown>) {
    await publish(attributes);
    writeFileSync(at('pod/file'), 'text');
    const before = known();
    if (before === undefined) throw new Error('it was not made');
    await change(before);
    await publish(attributes);
    expect(known()).toMatchObject({ id: before.id, store: before.store });
    expect(existsSync(at('pod/file'))).toBe(true);
    await local.call(method.nodeUnpublishVolume, { volumeId, targetPath: at('pod') });
    expect(known()).toBeUndefined();
  }

  test('succeeds after its store got a default size', async () => {
    await stays({ store: 'local' }, () => setDefaultSize(16n * mib));
  });

  test('succeeds after a second store was added and the choice became ambiguous', async () => {
    csi.server.core.stores.setDefault('silver');
    await stays({}, async () => await csi.server.core.stores.add('two', `local://${mkdtempSync(at('two-'))}`, aCall()));
  });

  test('succeeds after another store became the default', async () => {
    const { stores } = csi.server.core;
    await stores.add('two', `local://${mkdtempSync(at('two-'))}`, aCall());
    await stays({}, async () => stores.setDefault('two'));
  });

  test('succeeds after the volume was labelled', async () => {
    await stays({ store: 'local' }, ({ id }) =>
      csi.server.core.volumes.label(id, { team: 'shop' }, undefined, aCall()),
    );
  });

  test('succeeds after the volume was expanded', async () => {
    await stays({ store: 'local', size: '16Mi' }, ({ id }) =>
      csi.server.core.volumes.expand(id, 32n * mib, undefined, aCall()),
    );
  });

  test('is refused if the pod asks for another size than before, even if the volume has that size by now', async () => {
    const attributes = { store: 'local', size: '16Mi' };
    await publish(attributes);
    await csi.server.core.volumes.expand(known()?.id ?? '', 32n * mib, undefined, aCall());
    for (const size of ['8Mi', '32Mi', '64Mi'])
      await expect(publish({ ...attributes, size })).rejects.toMatchObject({ code: 6 });
    await expect(publish({ store: 'local' })).rejects.toMatchObject({ code: 6 });
    await publish(attributes);
  });

  test('is refused if the pod now asks for enforcement, or names a store that does not exist', async () => {
    await publish({});
    await expect(publish({ enforce: 'true' })).rejects.toMatchObject({ code: 6 });
    await expect(publish({ store: 'none' })).rejects.toMatchObject({ code: 3 });
    await expect(publish({}, { volumeCapability: mounted('SINGLE_NODE_WRITER', [], 'xfs') })).rejects.toMatchObject({
      code: 3,
      message: expect.stringContaining('fsType must not be set'),
    });
  });

  test('creates the data again that a power cut has lost', async () => {
    await publish({ store: 'local' });
    execFileSync('umount', [at('pod')]);
    await csi.server.core.mounts.reconcile(aCall());
    await setDefaultSize(16n * mib);
    const data = join(csi.server.storeFolder, volumeId);
    rmSync(data, { recursive: true });
    await publish({ store: 'local' });
    writeFileSync(at('pod/file'), 'text');
    expect(existsSync(join(data, 'file'))).toBe(true);
  });

  test.skipIf(lacks('loop', 'ext4'))(
    'succeeds with the volume’s own file system, and is refused with another',
    async () => {
      await csi.server.core.stores.add('disks', `local://${mkdtempSync(at('images-'))}?layout=image`, aCall());
      const attributes = { store: 'disks', size: '16Mi' };
      for (const fsType of ['ext4', '', 'ext4'])
        await publish(attributes, { volumeCapability: mounted('SINGLE_NODE_WRITER', [], fsType) });
      await expect(
        publish(attributes, { volumeCapability: mounted('SINGLE_NODE_WRITER', [], 'xfs') }),
      ).rejects.toMatchObject({ code: 3, message: expect.stringContaining("the volume has the file system 'ext4'") });
    },
  );
});

test.skipIf(lacks('mount'))(
  'an inline volume is found again after another host changed it on the shared store',
  async () => {
    const { stores } = csi.server.core;
    await stores.add('gold', `nfs://server${mkdtempSync(at('gold-'))}?inline=true`, aCall());
    const file = await csi.start('file');
    // The target does not exist: it is created, but not mounted.
    const publish = () => file.call(method.nodePublishVolume, request({ store: 'gold' }, 'missing/pod'));
    const unmounted = { message: expect.stringContaining('does not exist') };
    await expect(publish()).rejects.toMatchObject(unmounted);
    const volume = known();
    if (volume === undefined) throw new Error('it was not made');
    const labels = { ...volume.labels, team: 'shop' };
    await stores.use('gold', (store) => store.label(volume, labels, aCall()));
    await expect(publish()).rejects.toMatchObject(unmounted);
    expect(known()).toMatchObject({ id: volume.id, labels });
  },
);

test('an inline volume on a shared store is refused, with a hint how to allow it', async () => {
  const file = await csi.start('file');
  await expect(file.call(method.nodePublishVolume, request({ store: 'silver', size: '16M' }))).rejects.toMatchObject({
    code: 7,
    message: expect.stringMatching(/^store 'silver' does not allow inline volumes\. .* inline: true on the store$/),
  });
  expect((await file.call(Controller.method.listVolumes, {})).entries).toEqual([]);
});

describe('the size of an inline volume', () => {
  const publish = (size: string) =>
    local.call(method.nodePublishVolume, request({ store: 'local', size }, 'missing/inline'));
  const made = async () =>
    (await local.call(Controller.method.listVolumes, {})).entries.map(({ volume }) => volume?.capacityBytes);

  test.each(['10Gigs', '', '0', '0Gi', '-1Gi', '1GiB', 'Gi'])('can not be %o', async (size) => {
    await expect(publish(size)).rejects.toMatchObject({
      code: 3,
      message: expect.stringContaining(`'${size}' is not a size; use a Kubernetes quantity such as 10Gi`),
    });
    expect(await made()).toEqual([]);
  });

  test.each([
    ['1e9', 10n ** 9n],
    ['16M', 16_000_000n],
    ['1.5Gi', 3n << 29n],
    ['1Ei', 1n << 60n],
  ])('is %s, as in a claim', async (size, bytes) => {
    // The target does not exist: it is created, but not mounted.
    await expect(publish(size)).rejects.toThrow();
    expect(await made()).toEqual([bytes]);
  });
});
