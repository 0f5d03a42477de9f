import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { openRecords } from '#records/sqlite.ts';
import { aCall } from '#testing/core-calls.ts';
import { type ClientTable, createClients } from './clients.ts';
import { createEphemerals, type EphemeralParts, type Ephemerals } from './ephemeral.ts';
import { StowageError } from './errors.ts';
import { createEvents } from './events.ts';
import type { NodeName, Source, StoreName, Volume, VolumeId, VolumeName } from './model.ts';
import type { MountParts } from './mounts.ts';
import { newVolumeId } from './names.ts';
import { createOperations } from './operations.ts';
import type { Client, Mounter, MountPoint, Records, StagingTarget } from './ports.ts';
import { createTargetBinding } from './target-binding.ts';
import { createUnpublish } from './unpublish.ts';
import type { UsePublisher } from './use-publisher.ts';
import { createVolumeStaging, ownSource } from './volume-staging.ts';

/** A node with dirty data whose NFS server does not answer: every flush fails, and only forced unmounts succeed. */
let records: Records;
let table: Map<string, string>;
let unmounts: string[];
let ephemerals: Ephemerals;
let deletedVolumes: string[];
let isStuck: boolean;

const target = '/pods/one/volume';
const id: VolumeId = newVolumeId();
const stage = `/s/${id}`;
const source = { kind: 'nfs', hosts: ['filer'], path: '/export/a' } as unknown as Source;
const volume: Volume = {
  id,
  name: 'key' as VolumeName,
  store: 'silver' as StoreName,
  bytes: undefined,
  enforce: false,
  labels: {},
  access: 'filesystem',
  requestId: 'ephemeral:key',
  createdAt: 1,
  revision: 1,
  instance: 'i',
};

const unwritten = (): never => {
  throw new StowageError('a file has unwritten data that the server does not accept', {
    code: 'busy',
    reason: 'data-unwritten',
    action: 'Wait.',
  });
};

const point = ([at, from]: [string, string]): MountPoint => ({
  at,
  device: from,
  root: '/',
  source: from,
  type: 'fuse.stowage',
  readOnly: false,
});

const mounter = {
  unable: undefined,
  list: async () => [...table].map(point),
  locate: async (at: string) => at,
  unmount: unwritten,
  detach: async (at: string) => {
    if (isStuck) unwritten();
    unmounts.push(at);
    table.delete(at);
  },
} as unknown as Mounter;

const nfs = {
  kind: 'nfs',
  nodeLocal: false,
  outlivesMount: false,
  flush: async () => unwritten(),
  unstage: async (_source: Source, { path: at }: StagingTarget, _scope: unknown, how?: { readonly force: boolean }) => {
    if (how?.force !== true) unwritten();
    table.delete(at);
  },
} as unknown as Client<'nfs'>;

beforeEach(async () => {
  records = openRecords(':memory:');
  onTestFinished(() => records.close());
  [table, unmounts, deletedVolumes, isStuck] = [new Map(), [], [], false];
  const [clock, log] = [systemClock(), silentLog()];
  const events = createEvents('e', clock);
  const operations = createOperations({ records, events, clock, log });
  const parts = {
    records,
    mounter,
    clients: createClients({ nfs } as unknown as ClientTable),
    mountsFolder: '/s',
    operations,
    events,
    clock,
    log,
    node: 'n' as NodeName,
    engineMounts: () => ({ isHeld: () => false }),
  } as unknown as MountParts;
  const uses = { update: async () => undefined } as unknown as UsePublisher;
  const unpublish = createUnpublish(parts, createTargetBinding(parts, createVolumeStaging(parts), uses));
  const publish = async (): Promise<void> => {
    for (const mountPath of [stage, target]) table.set(mountPath, ownSource(id, '1'));
    const user = { kind: 'pod', name: 'shop/web', node: 'n' as NodeName } as const;
    records.mounts.put({ volumeId: id, source, target, readOnly: false, user, since: 1, madeTarget: false });
  };
  ephemerals = createEphemerals({
    records,
    operations,
    clock,
    log,
    mounts: { publish, unpublish },
    stores: { view: () => ({ config: { policy: {} }, placement: 'node' }) },
    volumes: {
      create: async () => {
        records.volumes.put(volume);
        return volume;
      },
    },
    deletions: { delete: async (one: string) => void deletedVolumes.push(one) },
  } as unknown as EphemeralParts);
  const publishOptions = { readOnly: false, user: undefined };
  await ephemerals.publish(
    'key',
    { store: volume.store, bytes: undefined, enforce: false },
    target,
    publishOptions,
    aCall(),
  );
});

test('an unpublish does not flush data before destroying it, so it works while the server does not answer', async () => {
  expect(await ephemerals.unpublish('key', target, aCall())).toBe(true);
  expect([...table.keys()]).toEqual([]);
  expect(unmounts).toEqual([target]);
  expect(records.mounts.list()).toEqual([]);
  expect(deletedVolumes).toEqual([id]);
});

test('unmounts a volume that is no longer on record', async () => {
  records.volumes.remove(id);
  expect(await ephemerals.unpublish('key', target, aCall())).toBe(true);
  expect([...table.keys()]).toEqual([]);
  expect(records.mounts.list()).toEqual([]);
});

test('records the end of the volume before unmounting it, so that a crash cannot leak it', async () => {
  isStuck = true;
  await expect(ephemerals.unpublish('key', target, aCall())).rejects.toThrow('a file has unwritten data');
  expect(JSON.parse(records.settings.get('ephemeral.volumes') ?? '[]')).toMatchObject([{ key: 'key', over: true }]);
});
