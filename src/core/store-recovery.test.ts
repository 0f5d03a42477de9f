import { copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { openRecords } from '#records/sqlite.ts';
import { aCall, runMaintenance, waitForOptions } from '#testing/core-calls.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { Operation, Volume } from './model.ts';
import { newOperationId, newVolumeId } from './names.ts';
import { specParams } from './volume-params.ts';

let folder: string;
let root: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'stowage-recovery-'));
  root = join(folder, 'keep');
  await mkdir(root);
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
});

type Setup = 'onDelete=delete' | 'onDelete=retain' | 'onDelete=archive';

/** Starts the server, does the work and stops the server cleanly. */
async function runServer<T>(work: (server: TestCore) => Promise<T>): Promise<T> {
  await using server = await startCore({ folder });
  return await work(server);
}

/** Adds a store and creates one volume in it. */
const createVolumeInStore = (setup: Setup = 'onDelete=delete'): Promise<Volume> =>
  runServer(async (server) => {
    await server.core.stores.add('keep', `local://${root}?${setup}`, aCall());
    const volume = await create(server, 'a');
    await writeFile(join(root, 'a', 'file'), 'text');
    return volume;
  });

const create = (server: TestCore, name: string): Promise<Volume> =>
  server.core.volumes.create(
    { store: 'keep', name, bytes: 10n, access: undefined, labels: { l: '1' } },
    aCall({ requestId: `make-${name}` }),
  );

/** Records an intent without an end, as a server leaves it after kill -9. */
function leaveIntent(kind: string, params: Record<string, unknown>): Operation['id'] {
  const id = newOperationId();
  const records = openRecords(join(folder, 'state.db'));
  const operation = { id, kind, store: 'keep', subject: 'keep/a', params };
  records.operations.begin({ ...operation, state: 'running', startedAt: 1, endedAt: undefined, error: undefined });
  records.close();
  return id;
}

/** Does the work, then restores the records from before, so that only the store has changed. */
async function withoutRecording(work: (server: TestCore) => Promise<unknown>): Promise<void> {
  await copyFile(join(folder, 'state.db'), join(folder, 'before.db'));
  await runServer(work);
  await copyFile(join(folder, 'before.db'), join(folder, 'state.db'));
}

const listVolumes = async (server: TestCore): Promise<readonly Volume[]> => {
  const query = { stores: ['keep'], labels: {}, contains: undefined, after: undefined, limit: 100 };
  return (await server.core.catalogue.page(query, aCall())).volumes;
};
const visible = async (): Promise<string[]> => (await readdir(root)).filter((name) => !name.startsWith('.')).sort();
const stateOf = (server: TestCore, id: Operation['id']): string | undefined =>
  server.core.operations.get(id)?.operation.state;

describe.each([
  ['before the store did anything', false],
  ['after the store had done everything', true],
])('a crash %s', (_when, done) => {
  test('does not prevent a create: the volume exists once, and repeating the request finds it', async () => {
    await createVolumeInStore();
    const spec = { name: 'b', bytes: 10n, access: 'filesystem', labels: { l: '1' }, requestId: 'make-b' } as const;
    const { instance } = await runServer(async (server) => server.core);
    const id = newVolumeId();
    if (done) await withoutRecording((server) => create(server, 'b'));
    const intent = leaveIntent(
      'volume.create',
      specParams({ ...spec, id, createdAt: 5, instance, name: 'b' as never }),
    );
    await runServer(async (server) => {
      expect(stateOf(server, intent)).toBe('done');
      const volumes = await listVolumes(server);
      expect(volumes.map((volume) => volume.name)).toEqual(['a', 'b']);
      expect(await create(server, 'b')).toEqual(volumes[1]);
    });
    expect(await visible()).toEqual(['a', 'a.meta', 'b', 'b.meta']);
  });

  test('does not prevent an expansion', async () => {
    const volume = await createVolumeInStore();
    if (done) await withoutRecording((server) => server.core.volumes.expand(volume.id, 50n, undefined, aCall()));
    const intent = leaveIntent('volume.expand', { id: volume.id, name: 'a', bytes: '50' });
    await runServer(async (server) => {
      expect(stateOf(server, intent)).toBe('done');
      expect(await listVolumes(server)).toMatchObject([{ id: volume.id, bytes: 50n, revision: 2 }]);
    });
  });

  test('does not prevent a rename', async () => {
    const volume = await createVolumeInStore();
    if (done) await withoutRecording((server) => server.core.volumes.rename(volume.id, 'z', undefined, aCall()));
    const intent = leaveIntent('volume.rename', { id: volume.id, name: 'a', to: 'z' });
    await runServer(async (server) => {
      expect(stateOf(server, intent)).toBe('done');
      expect(await listVolumes(server)).toMatchObject([{ id: volume.id, name: 'z' }]);
    });
    expect(await visible()).toEqual(['z', 'z.meta']);
    expect(await readFile(join(root, 'z', 'file'), 'utf8')).toBe('text');
  });

  test('does not prevent a change of labels', async () => {
    const volume = await createVolumeInStore();
    if (done) await withoutRecording((server) => server.core.volumes.label(volume.id, { x: '2' }, undefined, aCall()));
    const intent = leaveIntent('volume.label', { id: volume.id, name: 'a', labels: { l: '1', x: '2' } });
    await runServer(async (server) => {
      expect(stateOf(server, intent)).toBe('done');
      expect(await listVolumes(server)).toMatchObject([{ id: volume.id, labels: { l: '1', x: '2' }, revision: 2 }]);
    });
  });

  test.each<[Setup, string[], number]>([
    ['onDelete=delete', [], 0],
    ['onDelete=retain', ['a'], 0],
    ['onDelete=archive', [], 1],
  ])('does not prevent a deletion with %s', async (setup, left, inTrash) => {
    const volume = await createVolumeInStore(setup);
    if (done) await withoutRecording((server) => server.core.deletions.delete(volume.id, undefined, aCall()));
    const intent = leaveIntent('volume.delete', { id: volume.id, name: 'a', deletedAt: 7 });
    await runServer(async (server) => {
      expect(stateOf(server, intent)).toBe('done');
      expect(await listVolumes(server)).toEqual([]);
      expect(await server.core.deletions.trashOf('keep', aCall())).toHaveLength(inTrash);
    });
    expect(await visible()).toEqual(left);
  });

  test.each([
    ['of an expired entry', { expired: true }],
    ['on request', { deletedAt: 1 }],
  ])('during a purge %s does not purge a volume that was restored and deleted again', async (_why, params) => {
    const volume = await createVolumeInStore('onDelete=archive');
    await runServer((server) => server.core.deletions.delete(volume.id, undefined, aCall()));
    const intent = leaveIntent('trash.purge', { id: volume.id, name: 'a', ...params });
    await runServer(async (server) => {
      expect(stateOf(server, intent)).toBe('done');
      expect(await server.core.deletions.trashOf('keep', aCall())).toMatchObject([{ volume: { id: volume.id } }]);
    });
  });

  test('does not prevent a restore', async () => {
    const volume = await createVolumeInStore('onDelete=archive');
    await runServer((server) => server.core.deletions.delete(volume.id, undefined, aCall()));
    if (done) await withoutRecording((server) => server.core.deletions.restore(volume.id, 'z', () => true, aCall()));
    const intent = leaveIntent('volume.restore', { id: volume.id, name: 'a', to: 'z' });
    await runServer(async (server) => {
      expect(stateOf(server, intent)).toBe('done');
      expect(await listVolumes(server)).toMatchObject([{ id: volume.id, name: 'z' }]);
      expect(await server.core.deletions.trashOf('keep', aCall())).toEqual([]);
    });
    expect(await readFile(join(root, 'z', 'file'), 'utf8')).toBe('text');
  });

  test('does not prevent a purge', async () => {
    const volume = await createVolumeInStore('onDelete=archive');
    await runServer((server) => server.core.deletions.delete(volume.id, undefined, aCall()));
    if (done) await withoutRecording((server) => server.core.deletions.purge(volume.id, () => true, aCall()));
    const intent = leaveIntent('trash.purge', { id: volume.id, name: 'a' });
    await runServer(async (server) => {
      expect(stateOf(server, intent)).toBe('done');
      expect(await server.core.deletions.trashOf('keep', aCall())).toEqual([]);
    });
    expect(await visible()).toEqual([]);
  });

  test('does not prevent an adoption', async () => {
    await createVolumeInStore();
    await mkdir(join(root, 'films'));
    const adoptOptions = { dryRun: false, data: true };
    if (done) await withoutRecording((server) => server.core.adoptions.adopt('keep', adoptOptions, aCall()));
    const intent = leaveIntent('store.adopt', adoptOptions);
    await runServer(async (server) => {
      // An adoption can take hours, so the store opens before it ends.
      await vi.waitFor(() => expect(stateOf(server, intent)).toBe('done'), waitForOptions);
      expect((await listVolumes(server)).map((volume) => volume.name)).toEqual(['a', 'films']);
    });
    expect(await visible()).toEqual(['a', 'a.meta', 'films', 'films.meta']);
  });
});

test('an interrupted operation that can no longer succeed ends as failed, and the store opens', async () => {
  const volume = await createVolumeInStore();
  const intent = leaveIntent('volume.expand', { id: volume.id, name: 'a', bytes: '1' });
  await runServer(async (server) => {
    expect(server.core.operations.get(intent)?.operation).toMatchObject({
      state: 'failed',
      error: { code: 'out-of-range' },
    });
    expect(server.core.stores.view('keep').problem).toBeUndefined();
    expect(await listVolumes(server)).toMatchObject([{ bytes: 10n }]);
  });
});

test('an interrupted operation of an unknown kind stays on record for a version that knows it', async () => {
  await createVolumeInStore();
  const intent = leaveIntent('volume.teleport', {});
  await runServer(async (server) => {
    expect(stateOf(server, intent)).toBe('running');
    expect(await listVolumes(server)).toHaveLength(1);
  });
});

test('an interrupted operation waits while its store is down, and is replayed when the store is back', async () => {
  const volume = await createVolumeInStore();
  const intent = leaveIntent('volume.label', { id: volume.id, name: 'a', labels: { late: 'yes' } });
  await rename(root, join(folder, 'aside'));
  await runServer(async (server) => {
    expect(stateOf(server, intent)).toBe('running');
    expect(server.core.stores.view('keep').problem).toMatchObject({ code: 'unavailable' });
    await rename(join(folder, 'aside'), root);
    await runMaintenance(server.core);
    expect(stateOf(server, intent)).toBe('done');
    expect(await listVolumes(server)).toMatchObject([{ labels: { late: 'yes' } }]);
  });
});

test('removing a store cancels its interrupted operations', async () => {
  await createVolumeInStore();
  const intent = leaveIntent('volume.delete', { id: newVolumeId(), name: 'b', deletedAt: 1 });
  await rm(root, { recursive: true });
  await runServer(async (server) => {
    await server.core.stores.remove('keep', aCall());
    expect(server.core.operations.get(intent)?.operation).toMatchObject({
      state: 'canceled',
      error: { reason: 'store-removed', message: "store 'keep' was removed before the operation finished" },
    });
  });
});

describe('a directory that is not the store it was', () => {
  const problem = { code: 'unavailable', reason: 'store-identity' };

  test('stays empty if it is a mount point without its disk, and the volumes stay on record until the disk is back', async () => {
    const volume = await createVolumeInStore();
    await rename(root, join(folder, 'disk'));
    await mkdir(root);
    await runServer(async (server) => {
      expect(server.core.stores.view('keep').problem).toMatchObject(problem);
      expect(await readdir(root)).toEqual([]);
      await expect(create(server, 'b')).rejects.toMatchObject(problem);
      expect(await listVolumes(server)).toMatchObject([{ id: volume.id }]);
      await rm(root, { recursive: true });
      await rename(join(folder, 'disk'), root);
      await runMaintenance(server.core);
      expect(await server.core.volumes.inspect('keep..a', aCall())).toMatchObject({ condition: 'ok' });
    });
  });

  test('is accepted as the store by an adoption, without replaying operations of the old store', async () => {
    const volume = await createVolumeInStore();
    const intent = leaveIntent('volume.delete', { id: volume.id, name: 'a', deletedAt: 1 });
    await rename(root, join(folder, 'disk'));
    await mkdir(join(root, 'other'), { recursive: true });
    await runServer(async (server) => {
      const adoptOptions = { dryRun: true, data: true };
      await expect(server.core.adoptions.adopt('keep', adoptOptions, aCall())).rejects.toMatchObject(problem);
      await server.core.adoptions.adopt('keep', { ...adoptOptions, dryRun: false }, aCall());
      expect(await listVolumes(server)).toMatchObject([{ name: 'other' }]);
      expect(server.core.operations.get(intent)?.operation).toMatchObject({
        state: 'failed',
        error: { reason: 'store-moved' },
      });
    });
    // The store is still accepted after another restart.
    await runServer(async (server) => expect(await listVolumes(server)).toMatchObject([{ name: 'other' }]));
  });

  test('a removed store can be added again, whatever is in its directory', async () => {
    await createVolumeInStore();
    await runServer(async (server) => {
      await server.core.stores.remove('keep', aCall());
      await rm(root, { recursive: true });
      await mkdir(root);
      await server.core.stores.add('keep', `local://${root}`, aCall());
      expect(await listVolumes(server)).toEqual([]);
    });
  });
});
