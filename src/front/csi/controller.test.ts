import { mkdtempSync, readdirSync, rmdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { beforeEach, describe, expect, test } from 'vitest';
import { formatSize } from '#base/size.ts';
import type { StoreConfig, VolumeId, VolumeName } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { blockDevice, mounted, servedCsi } from '#testing/csi.ts';
import type { GrpcClient } from '#testing/grpc-client.ts';
import { Controller, type CreateVolumeRequestSchema, Identity } from '#wire/csi/generated/csi.ts';

const csi = servedCsi();
const { method } = Controller;
const gib = 1n << 30n;
let file: GrpcClient;
let local: GrpcClient;

beforeEach(async () => {
  file = await csi.start('file');
  local = await csi.start('local');
});

type RequestFields = Exclude<MessageInitShape<typeof CreateVolumeRequestSchema>, { $typeName: string }>;
const wanted = (more: Partial<RequestFields> = {}): RequestFields => ({
  name: 'pvc-1',
  volumeCapabilities: [mounted()],
  capacityRange: { requiredBytes: gib },
  ...more,
});
const create = async (client: GrpcClient, more: Partial<RequestFields> = {}) => {
  const { volume } = await client.call(method.createVolume, wanted(more));
  if (volume === undefined) throw new Error('no volume');
  return volume;
};

test('drivers announce their names and capabilities', async () => {
  expect(await file.call(Identity.method.getPluginInfo, {})).toMatchObject({
    name: 'file.stowage.dev',
    vendorVersion: '1.2.3',
  });
  const { capabilities } = await file.call(Identity.method.getPluginCapabilities, {});
  expect(capabilities.map(({ type }) => [type.case, type.value?.type])).toEqual([
    ['service', 1],
    ['volumeExpansion', 1],
  ]);
  expect(await local.call(Identity.method.getPluginInfo, {})).toMatchObject({ name: 'local.stowage.dev' });
  expect((await local.call(Identity.method.getPluginCapabilities, {})).capabilities).toHaveLength(3);
  expect(await local.call(Identity.method.probe, {})).toMatchObject({ ready: true });
});

describe('CreateVolume', () => {
  test('creates a volume on a store of the driver, and returns the same volume again when repeated', async () => {
    const made = await create(file);
    expect(made).toMatchObject({ capacityBytes: gib, volumeContext: { store: 'silver', name: 'pvc-1' } });
    expect(made.accessibleTopology).toEqual([]);
    expect(await create(file)).toEqual(made);
    expect(csi.server.core.records.volumes.byId(made.volumeId as never)).toMatchObject({ requestId: 'csi:pvc-1' });
    const here = await create(local);
    expect(here.volumeId).not.toBe(made.volumeId);
    expect(here.accessibleTopology).toMatchObject([
      { segments: { 'local.stowage.dev/node': csi.server.core.node.slice(0, 63) } },
    ]);
  });

  test('gives a volume with an invalid name a valid one, and keeps the requested name as a label', async () => {
    const { volumeId } = await create(file, { name: 'team a/photos' });
    const volume = csi.server.core.records.volumes.byId(volumeId as never);
    expect(volume?.name).toMatch(/^team-a-photos-[0-9a-f]{32}$/);
    expect(volume?.labels).toEqual({ 'stowage.dev/csi-name': 'team a/photos' });
    expect((await create(file, { name: 'team a/photos' })).volumeId).toBe(volumeId);
  });

  test('labels the volume with its claim', async () => {
    const parameters = {
      'csi.storage.k8s.io/pvc/name': 'photos',
      'csi.storage.k8s.io/pvc/namespace': 'team-a',
      'csi.storage.k8s.io/pv/name': 'pvc-1',
    };
    const { volumeId } = await create(file, { parameters });
    expect(csi.server.core.records.volumes.byId(volumeId as never)?.labels).toEqual({
      'stowage.dev/claim-name': 'photos',
      'stowage.dev/claim-namespace': 'team-a',
      'stowage.dev/persistent-volume': 'pvc-1',
    });
  });

  test('returns the existing volume if it has been expanded or labelled since', async () => {
    const { volumeId } = await create(file);
    await file.call(method.controllerExpandVolume, { volumeId, capacityRange: { requiredBytes: 2n * gib } });
    await csi.server.core.volumes.label(volumeId, { a: 'b' }, undefined, aCall());
    expect(await create(file)).toMatchObject({ volumeId, capacityBytes: 2n * gib });
  });

  test('completes a volume of which only the record exists after a kill', async () => {
    const { volumeId } = await create(file);
    const [silver = ''] = readdirSync(csi.folder).filter((name) => name.startsWith('silver-'));
    rmdirSync(join(csi.folder, silver, 'pvc-1'));
    await csi.server.core.volumes.label(volumeId, { a: 'b' }, undefined, aCall());
    expect(await create(file)).toMatchObject({ volumeId });
    expect(readdirSync(join(csi.folder, silver))).toContain('pvc-1');
  });

  test.skipIf(lacks('ext4'))(
    'completes an image with a file system after a kill, and then compares its file system',
    async () => {
      const images = mkdtempSync(join(csi.folder, 'images-'));
      await csi.server.core.stores.add('disks', `local://${images}?layout=image`, aCall());
      const ext4 = (name: string) =>
        create(local, {
          name,
          parameters: { store: 'disks' },
          capacityRange: { requiredBytes: 16n << 20n },
          volumeCapabilities: [mounted('SINGLE_NODE_WRITER', [], 'ext4')],
        });
      const { volumeId } = await ext4('pvc-1');
      const [image = ''] = readdirSync(images).filter((name) => name.startsWith('pvc-1'));
      rmSync(join(images, image));
      expect(await ext4('pvc-1')).toMatchObject({ volumeId });
      expect(readdirSync(images)).toContain(image);
    },
  );

  test.each([
    ['another size', { capacityRange: { requiredBytes: 2n * gib } }],
    ['a lower limit', { capacityRange: { limitBytes: gib / 2n } }],
    ['an enforced size', { parameters: { store: 'silver', enforce: 'true' } }],
  ])('with the same name and %s is AlreadyExists', async (_what, more) => {
    await create(file);
    await expect(create(file, more)).rejects.toMatchObject({
      code: 6,
      message: `volume 'pvc-1' already exists with other properties: filesystem, on store 'silver', with ${formatSize(gib)}. Choose another name, or request the volume with these properties.`,
    });
  });

  test('fails with ALREADY_EXISTS if another volume has the name', async () => {
    const spec = { store: 'silver', name: 'pvc-1', bytes: gib, access: undefined, labels: {} };
    await csi.server.core.volumes.create(spec, aCall());
    await expect(create(file)).rejects.toMatchObject({ code: 6 });
  });

  const invalid = 'Correct the claim, class or volume of the request; see the CSI specification.';
  test.each<[string, Partial<RequestFields>, number, string]>([
    ['no name', { name: '' }, 3, `name is missing. ${invalid}`],
    ['a name that is too long', { name: 'x'.repeat(129) }, 3, `name has more than 128 bytes. ${invalid}`],
    ['no capability', { volumeCapabilities: [] }, 3, `volume_capabilities is missing. ${invalid}`],
    [
      'no access type',
      { volumeCapabilities: [{ accessMode: { mode: 1 } }] },
      3,
      `volume_capabilities has no access type. ${invalid}`,
    ],
    [
      'an unknown mode',
      { volumeCapabilities: [mounted('UNKNOWN')] },
      3,
      `volume_capabilities has no known access mode. ${invalid}`,
    ],
    [
      'both types',
      { volumeCapabilities: [mounted(), blockDevice()] },
      3,
      `volume_capabilities mixes file system and block access. ${invalid}`,
    ],
    [
      'a device of a store that has none',
      { volumeCapabilities: [blockDevice()] },
      3,
      `store 'silver' has no block volumes. ${invalid}`,
    ],
    [
      'mount flags that mean nothing here',
      { volumeCapabilities: [mounted('SINGLE_NODE_WRITER', ['password=x'])] },
      3,
      `only these mount flags are supported: defaults, rw, ro, nosuid, nodev. ${invalid}`,
    ],
    [
      'an unknown parameter',
      { parameters: { size: '1G' } },
      3,
      `unknown parameter 'size'; supported parameters: store, enforce, nameTemplate. ${invalid}`,
    ],
    [
      'parameters that are too large',
      { parameters: { store: 'x'.repeat(5_000) } },
      3,
      `parameters has more than 4096 bytes. ${invalid}`,
    ],
    [
      'secrets that are too large',
      { secrets: { key: 'x'.repeat(5_000) } },
      3,
      `secrets has more than 4096 bytes. ${invalid}`,
    ],
    [
      'a store of another driver',
      { parameters: { store: 'local' } },
      3,
      "driver file.stowage.dev has no store 'local'. Set the parameter store to one of the stores of the driver: silver",
    ],
    ['a negative size', { capacityRange: { requiredBytes: -1n } }, 3, `capacity_range is negative. ${invalid}`],
    [
      'a range with nothing in it',
      { capacityRange: { requiredBytes: 2n, limitBytes: 1n } },
      11,
      'required_bytes (2B) is larger than limit_bytes (1B). Request a size between required_bytes and limit_bytes.',
    ],
    [
      'a size beyond all measure',
      { capacityRange: { requiredBytes: 1n << 62n } },
      11,
      `a volume cannot have ${1n << 62n} bytes. Give a size between 1 byte and 1 EiB, for example 10G.`,
    ],
    [
      'a source',
      { volumeContentSource: { type: { case: 'volume', value: { volumeId: 'x' } } } },
      3,
      `volumes cannot be cloned or created from snapshots yet. ${invalid}`,
    ],
    ['mutable parameters', { mutableParameters: { a: 'b' } }, 3, `mutable parameters are not supported. ${invalid}`],
  ])('with %s is refused', async (_what, more, code, message) => {
    await expect(create(file, more)).rejects.toMatchObject({ code, message });
  });

  test('is refused for other nodes by a store of this node', async () => {
    const elsewhere = { requisite: [{ segments: { 'local.stowage.dev/node': 'elsewhere' } }] };
    await expect(create(local, { accessibilityRequirements: elsewhere })).rejects.toMatchObject({ code: 8 });
    const both = { requisite: [...elsewhere.requisite, ...(await create(local)).accessibleTopology] };
    await create(local, { accessibilityRequirements: both });
    await expect(create(local, { volumeCapabilities: [mounted('MULTI_NODE_MULTI_WRITER')] })).rejects.toMatchObject({
      code: 3,
      message: `volumes of store 'local' can be used on one node only. ${invalid}`,
    });
  });

  test('fails with ABORTED while the same volume is being created', async () => {
    const gate = csi.nfs.close('create');
    const first = create(file);
    await gate.reached;
    await expect(create(file)).rejects.toMatchObject({
      code: 10,
      message: 'the same operation is already in progress. Retry the call in a moment.',
    });
    gate.open();
    const made = await first;
    expect(await create(file)).toEqual(made);
  });

  test('ends at the deadline of the caller, and leaves nothing behind', async () => {
    const gate = csi.nfs.close('create');
    const late = file.call(method.createVolume, wanted(), { 'grpc-timeout': '50m' });
    await expect(late).rejects.toMatchObject({ code: 4 });
    gate.open();
    expect((await file.call(method.listVolumes, {})).entries).toEqual([]);
  });
});

describe('DeleteVolume', () => {
  test('deletes a volume, and succeeds if there is none', async () => {
    const { volumeId } = await create(file);
    for (let i = 0; i < 2; i++) await file.call(method.deleteVolume, { volumeId });
    await file.call(method.deleteVolume, { volumeId: 'reallyfakevolumeid' });
    expect((await file.call(method.listVolumes, {})).entries).toEqual([]);
    await expect(file.call(method.deleteVolume, {})).rejects.toMatchObject({ code: 3 });
  });

  test('does not delete volumes of another driver', async () => {
    const { volumeId } = await create(local);
    await file.call(method.deleteVolume, { volumeId });
    expect((await local.call(method.listVolumes, {})).entries).toHaveLength(1);
  });

  test('fails for a volume on a store that was removed, until the store is configured again', async () => {
    const uri = `local://${mkdtempSync(join(csi.folder, 'moved-'))}`;
    const { stores } = csi.server.core;
    const config = parseStoreConfig('moved', uri, 'file', new Map([[csi.local.scheme, csi.local]]));
    const configure = (...more: readonly StoreConfig[]) => stores.configure(more, undefined, aCall());
    await configure(config);
    const { volumeId } = await create(local, { parameters: { store: 'moved' } });
    await configure();
    expect(stores.list().map(({ config: { name } }) => name)).not.toContain('moved');
    for (let i = 0; i < 2; i++)
      await expect(local.call(method.deleteVolume, { volumeId })).rejects.toMatchObject({
        code: 9,
        message: expect.stringContaining("store 'moved' is not configured any more, and the volume may still be on it"),
      });
    await configure(config);
    for (let i = 0; i < 2; i++) await local.call(method.deleteVolume, { volumeId });
    await configure();
    await local.call(method.deleteVolume, { volumeId });
  });

  test('fails for a name on a store that is not configured', async () => {
    await expect(local.call(method.deleteVolume, { volumeId: 'moved..pvc-1' })).rejects.toMatchObject({
      code: 9,
      message: expect.stringContaining("store 'moved' is not configured any more, and the volume may still be on it"),
    });
    for (const volumeId of ['local..pvc-1', 'silver..pvc-1']) await local.call(method.deleteVolume, { volumeId });
  });

  test('fails for a volume that cannot be looked up', async () => {
    const gate = csi.nfs.close('names', { deaf: true });
    const marks = csi.nfs.close('changedByOthers.revisions', { deaf: true });
    const volumeId = 'sv1-00000000-0000-0000-0000-000000000000';
    await expect(file.call(method.deleteVolume, { volumeId })).rejects.toMatchObject({ code: 14 });
    gate.open();
    marks.open();
  });
});

describe('a class with nameTemplate', () => {
  const claim = { 'csi.storage.k8s.io/pvc/name': 'db', 'csi.storage.k8s.io/pvc/namespace': 'shop' };
  const nameTemplate = '{namespace}-{name}';

  test('names the volume after its claim, and a repeated call returns the same volume', async () => {
    const made = await create(file, { parameters: { nameTemplate, ...claim } });
    expect(made.volumeContext).toEqual({ store: 'silver', name: 'shop-db' });
    expect(await create(file, { parameters: { nameTemplate, ...claim } })).toEqual(made);
    expect(csi.server.core.records.volumes.byId(made.volumeId as never)?.labels).toMatchObject({
      'stowage.dev/csi-name': 'pvc-1',
    });
    const another = create(file, { name: 'pvc-2', parameters: { nameTemplate, ...claim } });
    await expect(another).rejects.toMatchObject({ code: 6 });
  });

  test.each([
    [nameTemplate, {}, 'needs the namespace of the claim, which the provisioner did not send: start it with --extra'],
    ['{name}-{uid}', claim, "has '{uid}'; CSI provisioners support only {namespace} and {name}"],
    ['{label:team}', claim, "has '{label:team}'; CSI provisioners support only {namespace} and {name}"],
    ['{name', claim, "the parameter nameTemplate gives '{name', which is not a valid volume name"],
  ])('is refused if the template cannot be filled in: %s of %o', async (template, more, message) => {
    const refused = create(file, { parameters: { nameTemplate: template, ...more } });
    await expect(refused).rejects.toMatchObject({ code: 3, message: expect.stringContaining(message) });
  });

  test('does not affect other calls', async () => {
    const parameters = { nameTemplate: '{name}-{uid}' };
    expect((await local.call(method.getCapacity, { parameters })).availableCapacity).toBeGreaterThan(0n);
    const { volumeId } = await create(file);
    const request = { volumeId, volumeCapabilities: [mounted()], parameters };
    expect((await file.call(method.validateVolumeCapabilities, request)).confirmed).toBeDefined();
  });
});

describe('ListVolumes', () => {
  const names = (entries: readonly { volume?: { volumeContext: Record<string, string> } | undefined }[]) =>
    entries.map(({ volume }) => volume?.volumeContext['name']);

  test('returns the volumes of the driver in pages', async () => {
    for (const name of ['a', 'b', 'c']) await create(file, { name });
    await create(local);
    const first = await file.call(method.listVolumes, { maxEntries: 2 });
    expect(names(first.entries)).toEqual(['a', 'b']);
    const second = await file.call(method.listVolumes, { maxEntries: 2, startingToken: first.nextToken });
    expect(names(second.entries)).toEqual(['c']);
    expect(second.nextToken).toBe('');
    expect(names((await file.call(method.listVolumes, {})).entries)).toEqual(['a', 'b', 'c']);
    expect(first.entries[0]?.status?.volumeCondition).toMatchObject({ abnormal: false });
    expect((await file.call(method.controllerListVolumeHealth, {})).entries).toEqual([]);
  });

  test('limits a page to what clients accept, also without max_entries', async () => {
    const { records } = csi.server.core;
    const { volumeId } = await create(local, { name: 'v0000' });
    const one = records.volumes.byId(volumeId as VolumeId) ?? expect.fail('there is none');
    records.transaction(() => {
      for (let n = 1; n <= 3_000; n++) {
        const id = newVolumeId();
        records.volumes.put({ ...one, id, name: `v${String(n).padStart(4, '0')}` as VolumeName, requestId: id });
      }
    });
    const first = await local.call(method.listVolumes, {});
    expect([first.entries.length, names(first.entries).at(-1)]).toEqual([3_000, 'v2999']);
    const second = await local.call(method.listVolumes, { startingToken: first.nextToken, maxEntries: 5_000 });
    expect([names(second.entries), second.nextToken]).toEqual([['v3000'], '']);
  });

  test('fails with ABORTED for an unknown token, and rejects a negative max_entries', async () => {
    for (const startingToken of ['invalid-token', Buffer.from('["local","a"]').toString('base64url')])
      await expect(file.call(method.listVolumes, { startingToken })).rejects.toMatchObject({ code: 10 });
    await expect(file.call(method.listVolumes, { maxEntries: -1 })).rejects.toMatchObject({ code: 3 });
  });
});

describe('a volume', () => {
  test('is returned with its condition', async () => {
    const { volumeId } = await create(file);
    const { volume, status } = await file.call(method.controllerGetVolume, { volumeId });
    expect(volume).toMatchObject({ volumeId, capacityBytes: gib });
    expect(status?.volumeCondition).toMatchObject({ abnormal: false, message: 'the volume is healthy' });
    const { volumeHealth } = await file.call(method.controllerGetVolumeHealth, { volumeId });
    expect(volumeHealth).toMatchObject({ volumeId, healthStatuses: [] });
    await expect(local.call(method.controllerGetVolume, { volumeId })).rejects.toMatchObject({ code: 5 });
    await expect(file.call(method.controllerGetVolume, {})).rejects.toMatchObject({ code: 3 });
  });

  test('is unhealthy if its store does not answer', async () => {
    const { volumeId } = await create(file);
    const ping = csi.nfs.close('ping', { deaf: true });
    const { entries } = await file.call(method.controllerListVolumeHealth, {});
    const message = "the server of store 'silver' does not answer";
    expect(entries).toMatchObject([{ volumeId, healthStatuses: [{ status: 2, reason: 'StoreSilent', message }] }]);
    expect((await file.call(method.listVolumes, {})).entries[0]?.status?.volumeCondition).toMatchObject({
      abnormal: true,
      message,
    });
    ping.open();
  });

  test('is confirmed with its own capabilities and parameters, and not with others', async () => {
    const { volumeId, volumeContext } = await create(local);
    const validate = (more: object) =>
      local.call(method.validateVolumeCapabilities, { volumeId, volumeCapabilities: [mounted()], ...more });
    expect((await validate({ volumeContext, parameters: { store: 'local' } })).confirmed).toMatchObject({
      volumeContext,
      parameters: { store: 'local' },
    });
    for (const [more, message] of [
      [
        { volumeCapabilities: [mounted('MULTI_NODE_MULTI_WRITER')] },
        "volumes of store 'local' can be used on one node only",
      ],
      [{ volumeCapabilities: [blockDevice()] }, "store 'local' has no block volumes"],
      [{ volumeContext: { store: 'silver' } }, 'volume_context does not match the store of the volume'],
      [{ parameters: { enforce: 'true' } }, 'the size of the volume is not enforced'],
    ] as const)
      expect(await validate(more)).toMatchObject({ message });
    expect((await validate({ volumeCapabilities: [blockDevice()] })).confirmed).toBeUndefined();
    await expect(validate({ volumeId: 'nothing' })).rejects.toMatchObject({ code: 5 });
    await expect(validate({ volumeCapabilities: [] })).rejects.toMatchObject({ code: 3 });
  });

  test('can be expanded, and never shrinks', async () => {
    const { volumeId } = await create(file);
    const expand = (requiredBytes: bigint, limitBytes = 0n) =>
      file.call(method.controllerExpandVolume, { volumeId, capacityRange: { requiredBytes, limitBytes } });
    for (let i = 0; i < 2; i++)
      expect(await expand(2n * gib)).toMatchObject({ capacityBytes: 2n * gib, nodeExpansionRequired: false });
    expect(await expand(gib)).toMatchObject({ capacityBytes: 2n * gib });
    await expect(expand(gib, gib)).rejects.toMatchObject({ code: 11 });
    await expect(file.call(method.controllerExpandVolume, { volumeId })).rejects.toMatchObject({ code: 3 });
    const capacityRange = { requiredBytes: gib };
    const nothing = file.call(method.controllerExpandVolume, { volumeId: 'nothing', capacityRange });
    await expect(nothing).rejects.toMatchObject({ code: 5 });
  });
});

describe('GetCapacity', () => {
  test('is the free space of the stores that the volume could be on', async () => {
    expect((await local.call(method.getCapacity, {})).availableCapacity).toBeGreaterThan(0n);
    const elsewhere = { accessibleTopology: { segments: { 'local.stowage.dev/node': 'elsewhere' } } };
    expect((await local.call(method.getCapacity, elsewhere)).availableCapacity).toBe(0n);
    const device = { volumeCapabilities: [blockDevice()] };
    expect((await local.call(method.getCapacity, device)).availableCapacity).toBe(0n);
    await expect(local.call(method.getCapacity, { parameters: { store: 'silver' } })).rejects.toMatchObject({
      code: 3,
    });
  });

  test('is limited by maxBytes of the store', async () => {
    const folder = mkdtempSync(join(csi.folder, 'small-'));
    await csi.server.core.stores.add('small', `local://${folder}?maxBytes=3G`, aCall());
    await create(local, { parameters: { store: 'small' } });
    const { availableCapacity } = await local.call(method.getCapacity, { parameters: { store: 'small' } });
    expect(availableCapacity).toBe(2n * gib);
  });
});

test('unknown methods fail with UNIMPLEMENTED', async () => {
  await expect(file.call(method.createSnapshot, {})).rejects.toMatchObject({ code: 12 });
});

test('secrets are never logged', async () => {
  const secrets = { password: 'hunter2' };
  await create(file, { secrets });
  await expect(create(file, { secrets, parameters: { wrong: 'hunter2' } })).rejects.toMatchObject({ code: 3 });
  expect(JSON.stringify(csi.log.lines)).toContain('CSI call was rejected');
  expect(JSON.stringify(csi.log.lines)).not.toContain('hunter2');
});
