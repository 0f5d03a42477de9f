import { beforeEach, describe, expect, test } from 'vitest';
import { createDirectoryClient, type DirectoryClientParts } from '#clients/kinds/directory.ts';
import { createNfsClient, type NfsClientParts } from '#clients/kinds/nfs.ts';
import { scope } from '#testing/contracts/store.ts';
import { type ClientTable, createClients } from './clients.ts';
import { chownVolumeToGroup, createGroupRemount } from './fsgroup.ts';
import type { Mount, NfsConnection, Source, Volume, VolumeId } from './model.ts';
import type { Mounter, Store } from './ports.ts';

const nfs = (way: Partial<NfsConnection>): Source =>
  ({ kind: 'nfs', hosts: ['nas'], path: '/export/a', way }) as unknown as Source;
const volume = { id: 'sv1-a' as VolumeId, store: 'silver', name: 'a', access: 'filesystem' } as Volume;

const clients = createClients({
  directory: createDirectoryClient({} as DirectoryClientParts),
  nfs: createNfsClient({} as NfsClientParts),
} as unknown as ClientTable);
const mountedFor = (source: Source, group: number | undefined): Source =>
  clients.withMountOptions(source, { readOnly: false, group });

test('the source records the group that a volume is mounted for', () => {
  expect(mountedFor(nfs({ squash: 'all' }), 2000)).toEqual(nfs({ squash: 'all', group: 2000 }));
  expect(mountedFor(nfs({ squash: 'all' }), undefined)).toEqual(nfs({ squash: 'all' }));
  const directory = { kind: 'directory', path: '/a' } as unknown as Source;
  expect(mountedFor(directory, 2000)).toEqual(directory);
});

describe('the store changes the group of the volume', () => {
  let chownedGroups: number[];
  const chownToGroup: Store['chownToGroup'] = async (_, group) => void chownedGroups.push(group);
  const mount = { source: nfs({ squash: 'none' }), readOnly: false };

  beforeEach(() => {
    chownedGroups = [];
  });

  test('if the store supports groups', async () => {
    await chownVolumeToGroup({ chownToGroup }, volume, mount, 2000, scope);
    await chownVolumeToGroup({}, volume, mount, 2000, scope);
    expect(chownedGroups).toEqual([2000]);
  });

  test.each([
    ['without a group', undefined, mount, volume],
    ['for a read-only mount', 2000, { ...mount, readOnly: true }, volume],
    ['as a block device', 2000, mount, { ...volume, access: 'block' as const }],
  ])('except %s', async (_, group, how, which) => {
    await chownVolumeToGroup({ chownToGroup }, which, how, group, scope);
    expect(chownedGroups).toEqual([]);
  });
});

describe('a volume that is mounted for the group of an earlier pod', () => {
  let mounts: Map<string, Mount>;
  let mounterCalls: string[];
  let isBusy: boolean;
  let isUnbindable: boolean;
  /** Mounts on record at the time of the bind. */
  let onRecord: string[];

  const recordMount = (target: string, kind: 'kubelet' | 'pod', group?: number, madeTarget = false): void =>
    void mounts.set(target, {
      volumeId: volume.id,
      source: nfs({ squash: 'all', group }),
      target,
      readOnly: false,
      since: 1,
      madeTarget,
      user: { kind, name: target, node: 'n' },
    } as Mount);

  const groupRemount = () =>
    createGroupRemount(
      {
        clients,
        records: {
          mounts: {
            byVolume: () => [...mounts.values()],
            put: (one: Mount) => mounts.set(one.target, one),
            remove: (target: string) => mounts.delete(target),
          },
        },
        mounter: {
          makeTarget: async (target: string) => void mounterCalls.push(`make ${target}`),
          removeTarget: async (target: string) => void mounterCalls.push(`remove ${target}`),
          bind: async (from: string, to: string) => {
            onRecord.push(...mounts.keys());
            if (isUnbindable) throw new Error('it cannot be');
            mounterCalls.push(`bind ${from} ${to}`);
          },
        } as unknown as Mounter,
      } as unknown as Parameters<typeof createGroupRemount>[0],
      { path: (id) => `/s/${id}` },
      {
        unmount: async ({ target }) => {
          if (isBusy) throw new Error('busy');
          mounts.delete(target);
          mounterCalls.push(`take ${target}`);
        },
      },
    );

  beforeEach(() => {
    [mounts, mounterCalls, onRecord] = [new Map(), [], []];
    [isBusy, isUnbindable] = [false, false];
  });

  test('is remounted if only the kubelet has it staged, and the staged mount is bound again', async () => {
    recordMount('/stage', 'kubelet', 2000);
    const wantedSource = nfs({ squash: 'all', group: 3000 });
    const unboundMounts = await groupRemount().unbindForGroup(volume, wantedSource, scope);
    expect([mounts.size, mounterCalls]).toEqual([0, ['take /stage']]);
    await groupRemount().rebind(unboundMounts, wantedSource, scope);
    expect(mounterCalls).toEqual(['take /stage', 'bind /s/sv1-a /stage']);
    expect(mounts.get('/stage')).toMatchObject({ source: wantedSource, user: { kind: 'kubelet' } });
  });

  test('is recorded before it is bound again, and leaves nothing behind if binding fails', async () => {
    recordMount('/stage', 'kubelet', 2000, true);
    const wantedSource = nfs({ squash: 'all', group: 3000 });
    const unboundMounts = await groupRemount().unbindForGroup(volume, wantedSource, scope);
    isUnbindable = true;
    await groupRemount().rebind(unboundMounts, wantedSource, scope);
    expect(onRecord).toEqual(['/stage']);
    expect(mounterCalls).toEqual(['take /stage', 'make /stage', 'remove /stage']);
    expect(mounts.size).toBe(0);
  });

  test.each([
    ['is the same', () => recordMount('/stage', 'kubelet', 3000)],
    [
      'is one that a pod still has',
      () => {
        recordMount('/stage', 'kubelet', 2000);
        recordMount('/pod', 'pod', 2000);
      },
    ],
    ['is none yet', () => undefined],
  ])('is not remounted if its group %s', async (_, prepare) => {
    prepare();
    expect(await groupRemount().unbindForGroup(volume, nfs({ squash: 'all', group: 3000 }), scope)).toEqual([]);
    expect(mounterCalls).toEqual([]);
  });

  test('is shared unchanged if it is in use', async () => {
    recordMount('/stage', 'kubelet', 2000);
    isBusy = true;
    expect(await groupRemount().unbindForGroup(volume, nfs({ squash: 'all', group: 3000 }), scope)).toEqual([]);
    expect(mounts.get('/stage')).toMatchObject({ source: nfs({ squash: 'all', group: 2000 }) });
  });
});
