import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { fileDriver, localDriver } from '#core/csi-drivers.ts';
import type { StoreView } from '#core/store-view.ts';
import { blockDevice, mounted } from '#testing/csi.ts';
import { VolumeCapability_AccessMode_Mode as Mode, VolumeCapabilitySchema } from '#wire/csi/generated/csi.ts';
import { mountGroupOf, parseCapability, unsupportedBecause } from './capabilities.ts';

type Name = keyof typeof Mode;
const requested = (mode: Name) => parseCapability(create(VolumeCapabilitySchema, mounted(mode)));

describe('parsing an access mode', () => {
  test.each<[Name, string, string, string, string]>([
    ['SINGLE_NODE_WRITER', 'writes', 'one node', 'staged', 'pods'],
    ['SINGLE_NODE_READER_ONLY', 'reads', 'one node', 'staged', 'pods'],
    ['SINGLE_NODE_SINGLE_WRITER', 'writes', 'one node', 'staged', 'pod'],
    ['SINGLE_NODE_MULTI_WRITER', 'writes', 'one node', 'staged', 'pods'],
    ['MULTI_NODE_READER_ONLY', 'reads', 'many nodes', 'never', 'pods'],
    ['MULTI_NODE_SINGLE_WRITER', 'writes', 'many nodes', 'written', 'pods'],
    ['MULTI_NODE_MULTI_WRITER', 'writes', 'many nodes', 'never', 'pods'],
  ])('%s: %s, %s, single node writer when %s, for %s', (mode, reads, nodes, singleNodeWriter, pods) => {
    expect(requested(mode)).toEqual({
      access: 'filesystem',
      group: undefined,
      filesystem: undefined,
      singleNodeWriter,
      readOnly: reads === 'reads',
      multiNode: nodes === 'many nodes',
      singlePod: pods === 'pod',
    });
  });

  test('knows every access mode of CSI', () => {
    const names = (Object.keys(Mode) as Name[]).filter((name) => name !== 'UNKNOWN');
    for (const name of names) expect(() => requested(name)).not.toThrow();
    expect(names).toHaveLength(7);
  });
});

describe('volume_mount_group', () => {
  const grouped = (volumeMountGroup: string) =>
    parseCapability(
      create(VolumeCapabilitySchema, {
        accessType: { case: 'mount', value: { volumeMountGroup } },
        accessMode: { mode: Mode.SINGLE_NODE_WRITER },
      }),
    );

  test('is a gid, which only a driver with VOLUME_MOUNT_GROUP uses', () => {
    expect(['', '0', '2000', '4294967294'].map((text) => grouped(text).group)).toEqual([
      undefined,
      0,
      2000,
      4294967294,
    ]);
    expect(mountGroupOf({ driver: fileDriver }, grouped('2000'))).toBe(2000);
    expect(mountGroupOf({ driver: localDriver }, grouped('2000'))).toBeUndefined();
  });

  test.each(['users', '-1', '4294967295', '1e3', ' 7', '0x10'])('can not be %j', (text) => {
    expect(() => grouped(text)).toThrow('volume_mount_group is not a gid');
  });
});

test('says which capability a store does not support', () => {
  const view = { config: { name: 'one' }, store: { access: ['filesystem'] } } as unknown as StoreView;
  const block = parseCapability(create(VolumeCapabilitySchema, blockDevice()));
  expect(unsupportedBecause([requested('MULTI_NODE_MULTI_WRITER')], fileDriver, view)).toBeUndefined();
  expect(unsupportedBecause([requested('MULTI_NODE_MULTI_WRITER')], localDriver, view)).toBe(
    "volumes of store 'one' can be used on one node only",
  );
  expect(unsupportedBecause([block], localDriver, view)).toBe("store 'one' has no block volumes");
  const ext4 = parseCapability(create(VolumeCapabilitySchema, mounted('SINGLE_NODE_WRITER', [], 'ext4')));
  expect(unsupportedBecause([ext4], localDriver, view)).toBe(
    "volumes of store 'one' are directories on a shared file system, so fsType must not be set",
  );
  // Unknown while the store is not open; creating the volume then fails with the store's error.
  for (const one of [block, ext4])
    expect(unsupportedBecause([one], localDriver, { ...view, store: undefined })).toBeUndefined();
});
