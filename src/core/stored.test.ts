import { mkdirSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { createMemoryRecords, type MemoryRecords } from '#testing/fakes/records.ts';
import { exportFolder, openNfs } from '#testing/nfs-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { Mount, NodeName, Operation, StoreName, Volume } from './model.ts';
import { newOperationId, newVolumeId } from './names.ts';
import { recordRepair, repairedAt } from './repaired-mounts.ts';
import { ownSource, setUnderRepair, volumesUnderRepair } from './volume-staging.ts';

/**
 * The intents and settings that 0.1 writes into state.db. A later version replays the intents after a crash, so the fixture never changes.
 * New fields of an intent must be optional.
 */
interface Stored {
  readonly operations: readonly Pick<Operation, 'kind' | 'store' | 'subject' | 'params'>[];
  readonly settings: Readonly<Record<string, unknown>>;
}
const stored = async (): Promise<Stored> =>
  JSON.parse(await readFile(new URL('fixtures/stored-1.json', import.meta.url), 'utf8'));

let folder: string;
let exported: string;
let targets: string;
let root: string;
let records: MemoryRecords;
const target = (name: string): string => join(targets, name);

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'stowage-stored-'));
  exported = await exportFolder();
  root = join(folder, 'keep');
  mkdirSync(root);
  records = createMemoryRecords();
  targets = await mkdtemp(join(tmpdir(), 'stowage-targets-'));
  onTestFinished(async () => {
    records[Symbol.dispose]();
    for (const one of [folder, exported, targets]) await rm(one, { recursive: true, force: true });
  });
});

async function runServer<T>(work: (server: TestCore) => Promise<T>): Promise<T> {
  const kinds = [createLocalStoreKind(), createNfsStoreKind(systemClock(), connectToDisk(exported))];
  await using server = await startCore({ folder, kinds, records });
  return await work(server);
}

const create = ({ core }: TestCore, store: string, name: string, requestId = `make ${name}`): Promise<Volume> => {
  const want = { store, name, bytes: 2n ** 30n, access: undefined, labels: { team: 'a' } };
  return core.volumes.create(want, aCall({ requestId }));
};

async function addStores({ core }: TestCore): Promise<void> {
  await core.stores.add('keep', `local://${root}?onDelete=archive`, aCall());
  await core.stores.add('silver', 'nfs://nas/export?squash=none', aCall());
}

/** Another host records that it uses a volume. */
async function useElsewhere(volume: Volume): Promise<void> {
  const kind = createNfsStoreKind(systemClock(), connectToDisk(exported));
  const store = await openNfs({ uri: 'nfs://nas/export', kind, instance: 'other', marks: { own: 9, dead: [] } });
  try {
    await store.uses?.put(volume, { host: 'other', node: 'other' as NodeName, users: [] }, aCall());
  } finally {
    await store.close();
  }
}

const publishOptions = { readOnly: false, user: undefined };

/** Runs every kind of operation, with all its variants. */
async function useAll(server: TestCore): Promise<Volume> {
  const { volumes, deletions, mounts, uses, adoptions, ephemerals } = server.core;
  await addStores(server);
  const { id } = await create(server, 'silver', 'a');
  await volumes.enforce(id, true, undefined, aCall());
  await volumes.expand(id, 2n ** 31n, undefined, aCall());
  await volumes.rename(id, 'b', undefined, aCall());
  await volumes.label(id, { more: 'x' }, undefined, aCall());
  await useElsewhere(await server.core.catalogue.resolve(id, aCall()));
  await uses.release(id, 'other', aCall());
  await mounts.publish(id, target('b'), publishOptions, aCall());
  await mounts.unpublish(target('b'), id, aCall());
  await deletions.delete(id, undefined, aCall(), { discard: true });

  const kept = await create(server, 'keep', 'c');
  await deletions.delete(kept.id, undefined, aCall());
  await deletions.restore(kept.id, 'd', () => true, aCall());
  await deletions.delete(kept.id, undefined, aCall());
  await deletions.purge(kept.id, () => true, aCall());
  await adoptions.adopt('keep', { dryRun: false, data: true }, aCall());
  await adoptions.adopt('keep', { dryRun: true, data: false, names: ['e'] }, aCall());
  const want = { store: 'keep' as StoreName, bytes: 4096n, enforce: false };
  const user = { kind: 'pod', name: 'default/web', node: 'this-node' as NodeName } as const;
  await ephemerals.publish('key', want, target('f'), { ...publishOptions, user }, aCall());
  return kept;
}

const settingsWritten = [
  'compared keep',
  'defaultStore',
  'ephemeral.volumes',
  'identity of keep',
  'instance',
  'place of keep',
  'place of silver',
  'process marks',
  'uses.unsaid',
];

/** Clients filter events by type. */
const eventTypes = [
  'mount.mounted',
  'mount.unmounted',
  'operation.ended',
  'operation.started',
  'store.added',
  'store.removed',
  'volume.changed',
  'volume.created',
  'volume.deleted',
];

/** Ids, paths and times are replaced by fixed text. */
function readStored(server: TestCore): Stored {
  const openedRecords = server.kept.records.open();
  const ids: string[] = [];
  const identity = openedRecords.settings.get('identity of keep') ?? '';
  const normalized = (text: string): string =>
    text
      .replaceAll(folder, '<folder>')
      .replaceAll(exported, '<export>')
      .replaceAll(targets, '<targets>')
      .replaceAll(server.core.instance, '<instance>')
      .replaceAll(identity, '<identity>')
      .replaceAll(/sv1-[0-9a-f-]{36}/g, (id) => {
        if (!ids.includes(id)) ids.push(id);
        return `<volume ${ids.indexOf(id) + 1}>`;
      })
      .replaceAll(/"(createdAt|deletedAt|since|retention|uid|gid)":\d+/g, '"$1":0')
      .replaceAll(/"(root|ledger)":"[^"]+"/g, '"$1":"AA=="')
      .replaceAll(/"marks":\[[\d,]+\]/g, '"marks":[2]');
  const json = (text: string): unknown => (/^[[{]/.test(text) ? JSON.parse(text) : text);
  const operations = openedRecords.operations
    .page({ limit: 100 })
    .items.toReversed()
    .map(({ kind, store, subject, params }) => ({ kind, store, subject, params }));
  const values = settingsWritten.map((key) => [key, json(normalized(openedRecords.settings.get(key) ?? ''))] as const);
  return { operations: JSON.parse(normalized(JSON.stringify(operations))), settings: Object.fromEntries(values) };
}

test('the use cases write the same intents and settings as 0.1, and publish the same events', async () => {
  const types = new Set<string>();
  await runServer(async (server) => {
    using _ = server.core.events.subscribe(({ type }) => types.add(type));
    await useAll(server);
    expect(readStored(server)).toEqual(await stored());
    await server.core.ephemerals.unpublish('key', target('f'), aCall());
    await server.core.stores.remove('silver', aCall());
  });
  // Whether a short operation reports progress depends on how long it takes.
  types.delete('operation.progress');
  expect([...types].toSorted()).toEqual(eventTypes);
});

describe('an operation that 0.1 left unfinished', () => {
  const id = newVolumeId();

  /** Records the n-th intent without an end, as a crash would leave it. */
  async function leaveIntent(n: number): Promise<Operation> {
    const { instance } = await runServer(async ({ core }) => core);
    const text = JSON.stringify((await stored()).operations[n])
      .replaceAll('<volume 1>', id)
      .replaceAll('<instance>', instance)
      .replaceAll('<targets>', targets);
    const operation: Operation = {
      ...JSON.parse(text),
      id: newOperationId(),
      state: 'running',
      startedAt: 1,
      endedAt: undefined,
      error: undefined,
    };
    records.open().operations.begin(operation);
    return operation;
  }

  /** Starts the server and waits until it has replayed the operation. */
  async function replayed(operation: Operation): Promise<Volume | undefined> {
    return await runServer(async ({ core }) => {
      const { state, kind } = core.operations.get(operation.id)?.operation ?? expect.fail();
      expect([kind, state]).toEqual([operation.kind, 'done']);
      return core.records.volumes.byId(id);
    });
  }

  test('is finished by the next start', async () => {
    await runServer(addStores);
    const { operations } = await stored();
    const nth = (kind: string): number => operations.findIndex((one) => one.kind === kind);
    const finish = async (kind: string): Promise<Volume | undefined> => await replayed(await leaveIntent(nth(kind)));

    const made = await finish('volume.create');
    expect(made).toMatchObject({
      id,
      name: 'a',
      store: 'silver',
      bytes: 2n ** 30n,
      enforce: false,
      requestId: 'make a',
    });
    expect(made).toMatchObject({ access: 'filesystem', labels: { team: 'a' } });
    expect(await finish('volume.enforce')).toMatchObject({ enforce: true });
    expect(await finish('volume.expand')).toMatchObject({ bytes: 2n ** 31n });
    expect(await finish('volume.rename')).toMatchObject({ name: 'b' });
    expect(await finish('volume.label')).toMatchObject({ labels: { more: 'x', team: 'a' } });

    await useElsewhere(made ?? expect.fail());
    const whoUses = () => runServer(({ core }) => core.uses.list(made ?? expect.fail(), aCall()));
    expect(await whoUses()).toMatchObject([{ host: 'other' }]);
    await finish('volume.release');
    expect(await whoUses()).toEqual([]);

    await finish('volume.mount');
    expect(records.open().mounts.list()).toEqual([]);
    const unmount = await leaveIntent(nth('volume.unmount'));
    records.open().mounts.put(unmount.params['mount'] as Mount);
    await replayed(unmount);
    expect(records.open().mounts.list()).toEqual([]);

    expect(await finish('volume.delete')).toBeUndefined();
  });

  test('for an ephemeral volume is still known', async () => {
    const { settings } = await stored();
    await runServer(addStores);
    const text = JSON.stringify(settings['ephemeral.volumes']).replaceAll('<targets>', targets);
    records.open().settings.set('ephemeral.volumes', text);
    await runServer(async (server) => {
      await create(server, 'keep', 'key', 'ephemeral:key');
      expect(server.core.ephemerals.volume('key')).toMatchObject({ store: 'keep', name: 'key' });
      expect(await server.core.ephemerals.unpublish('key', target('f'), aCall())).toBe(true);
      expect(server.core.ephemerals.volume('key')).toBeUndefined();
    });
  });
});

describe('mounts that 0.1 left', () => {
  const id = 'sv1-00000000-0000-4000-8000-000000000001' as Volume['id'];
  const user = { kind: 'path', name: '/mnt/a', node: 'this-node' as NodeName } as const;
  const source = { kind: 'directory', node: user.node, path: '/srv/a' } as const;
  const mount: Mount = { volumeId: id, source, target: '/mnt/a', readOnly: false, user, since: 5, madeTarget: false };

  test('are recognised in the mount table of the kernel', () => {
    expect(ownSource(id, '0a0b0c0d')).toBe(`stowage:${id}.0a0b0c0d`);
  });

  test('keep the notes about repairs', () => {
    const { settings, mounts } = records.open();
    setUnderRepair({ settings }, id, true);
    expect(settings.get('mounts.repairing')).toBe(`["${id}"]`);
    expect(volumesUnderRepair({ settings })).toEqual([id]);
    mounts.put(mount);
    recordRepair({ settings, mounts }, mount, 7);
    expect(settings.get('mounts.repaired')).toBe('{"/mnt/a":7}');
    expect(repairedAt({ settings }, mount)).toBe(7);
  });
});
