import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { needs } from '#testbed/needs.ts';
import { aCall } from '#testing/core-calls.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import type { NodeName, Volume } from './model.ts';

/** Two hosts on one export, each with its own state folder. */
let one: TestCore;
let other: TestCore;
let folder: string;

beforeEach(async () => {
  const clock = systemClock();
  const parent = await mkdtemp(join(tmpdir(), 'stowage-shared-'));
  onTestFinished(() => rm(parent, { recursive: true, force: true }));
  folder = await mkdtemp(join(parent, 'export-'));
  const nfs = await createNfsServer({
    clock,
    directory: folder,
    state: join(parent, 'state'),
    port: 0,
    path: '/export',
    squash: 'none',
    onError: () => undefined,
  });
  onTestFinished(() => nfs.close());
  const start = async (): Promise<TestCore> => {
    const server = await startCore({ kinds: [createLocalStoreKind(), createNfsStoreKind(clock)] });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const uri = `nfs://${nfs.host}/export?port=${nfs.port}&mountport=${nfs.port}`;
    await server.core.stores.add('silver', uri, aCall());
    return server;
  };
  [one, other] = [await start(), await start()];
});

const create = ({ core }: TestCore, name: string, key?: string): Promise<Volume> =>
  core.volumes.create(
    { store: 'silver', name, bytes: 1n, access: undefined, labels: {} },
    { ...aCall(), ...(key === undefined ? {} : { requestId: key }) },
  );
const list = async ({ core }: TestCore): Promise<readonly Volume[]> => {
  const query = { stores: ['silver'], labels: {}, contains: undefined, after: undefined, limit: 100 };
  return (await core.catalogue.page(query, aCall())).volumes;
};

describe('two hosts on one store', () => {
  test('see at once what the other host creates, changes, renames and deletes', async () => {
    const made = await create(one, 'a');
    expect(await list(other)).toEqual([made]);
    const labelled = await other.core.volumes.label(made.id, { team: 'red' }, undefined, aCall());
    expect(await list(one)).toEqual([labelled]);
    const renamed = await one.core.volumes.rename(made.id, 'b', undefined, aCall());
    expect(await other.core.catalogue.resolve(made.id, aCall())).toEqual(renamed);
    await expect(other.core.catalogue.resolve('silver..a', aCall())).rejects.toMatchObject({ code: 'not-found' });
    await other.core.deletions.delete(made.id, undefined, aCall());
    await expect(one.core.catalogue.resolve(made.id, aCall())).rejects.toMatchObject({ code: 'not-found' });
    expect(await list(one)).toEqual([]);
  });

  test('deleting a volume that another host renamed destroys it', async () => {
    const { id } = await create(one, 'a');
    await list(other);
    await one.core.volumes.rename(id, 'b', undefined, aCall());
    await other.core.deletions.delete(id, undefined, aCall());
    expect(await readdir(folder)).toEqual(['.stowage']);
  });

  test('a name that another host deleted and reused refers to the new volume', async () => {
    const first = await create(one, 'a');
    await list(other);
    await one.core.deletions.delete(first.id, undefined, aCall());
    const second = await create(one, 'a');
    expect((await other.core.catalogue.resolve('silver..a', aCall())).id).toBe(second.id);
    expect(await list(other)).toEqual([second]);
    await expect(other.core.deletions.delete(first.id, undefined, aCall())).rejects.toMatchObject({
      code: 'not-found',
    });
    expect(await list(one)).toEqual([second]);
  });

  test('concurrent creates of one name create one volume, and the other host gets an error', async () => {
    for (let round = 0; round < 10; round++) {
      const results = await Promise.allSettled([create(one, `v${round}`), create(other, `v${round}`)]);
      const made = results.filter((result) => result.status === 'fulfilled');
      const refused = results.filter((result) => result.status === 'rejected');
      expect(made.length).toBe(1);
      expect(refused[0]?.reason).toMatchObject({ code: 'exists', reason: 'volume-exists' });
    }
    expect((await list(one)).length).toBe(10);
    expect(await list(other)).toEqual(await list(one));
  });

  test('refuse to delete or rename a volume that another host uses, even if that host is stale', async () => {
    const made = await create(one, 'a');
    await other.core.stores.use('silver', async (store) => {
      const use = { host: 'host-2', node: 'far' as never, users: [{ kind: 'container', name: 'db' }] } as const;
      await store.uses?.put(made, use, aCall());
    });
    const refusal = { code: 'in-use', message: expect.stringContaining('host far (host-2, container db)') };
    await expect(one.core.deletions.delete(made.id, undefined, aCall())).rejects.toMatchObject(refusal);
    await expect(one.core.volumes.rename(made.id, 'b', undefined, aCall())).rejects.toMatchObject(refusal);
    await one.core.stores.use('silver', (store) => store.uses?.remove(made.id, 'host-2', aCall()) ?? Promise.resolve());
    await one.core.deletions.delete(made.id, undefined, aCall());
    expect(await list(other)).toEqual([]);
  });
});

test.skipIf(needs('mount'))(
  'a host that is rejected because another host is the writer publishes no use record',
  async () => {
    const made = await create(one, 'a');
    const use = { host: 'elsewhere', node: 'elsewhere' as NodeName, users: [] };
    const { uses } = one.core.stores.view('silver').store ?? {};
    await uses?.takeWriter(made, use.host, aCall());
    await uses?.put(made, use, aCall());
    const target = `${one.folder}-m`;
    const how = { readOnly: false, user: undefined, singleNodeWriter: true };
    await expect(one.core.mounts.publish(made.id, target, how, aCall())).rejects.toMatchObject({
      reason: 'volume-written-elsewhere',
    });
    expect((await other.core.uses.list(made, aCall()))?.map(({ host }) => host)).toEqual(['elsewhere']);
  },
);
