import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import type { NodeName, Volume } from './model.ts';

/** Two hosts on one export, each with its own state folder. */
let host1: TestCore;
let host2: TestCore;
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
  const startHost = async (): Promise<TestCore> => {
    const server = await startCore({ kinds: [createLocalStoreKind(), createNfsStoreKind(clock)] });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const uri = `nfs://${nfs.host}/export?port=${nfs.port}&mountport=${nfs.port}`;
    await server.core.stores.add('silver', uri, aCall());
    return server;
  };
  [host1, host2] = [await startHost(), await startHost()];
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
    const made = await create(host1, 'a');
    expect(await list(host2)).toEqual([made]);
    const labelled = await host2.core.volumes.label(made.id, { team: 'red' }, undefined, aCall());
    expect(await list(host1)).toEqual([labelled]);
    const renamed = await host1.core.volumes.rename(made.id, 'b', undefined, aCall());
    expect(await host2.core.catalogue.resolve(made.id, aCall())).toEqual(renamed);
    await expect(host2.core.catalogue.resolve('silver..a', aCall())).rejects.toMatchObject({ code: 'not-found' });
    await host2.core.deletions.delete(made.id, undefined, aCall());
    await expect(host1.core.catalogue.resolve(made.id, aCall())).rejects.toMatchObject({ code: 'not-found' });
    expect(await list(host1)).toEqual([]);
  });

  test('destroy a volume that the other host has renamed', async () => {
    const { id } = await create(host1, 'a');
    await list(host2);
    await host1.core.volumes.rename(id, 'b', undefined, aCall());
    await host2.core.deletions.delete(id, undefined, aCall());
    expect(await readdir(folder)).toEqual(['.stowage']);
  });

  test('find the new volume under a name that the other host deleted and reused', async () => {
    const first = await create(host1, 'a');
    await list(host2);
    await host1.core.deletions.delete(first.id, undefined, aCall());
    const second = await create(host1, 'a');
    expect((await host2.core.catalogue.resolve('silver..a', aCall())).id).toBe(second.id);
    expect(await list(host2)).toEqual([second]);
    await expect(host2.core.deletions.delete(first.id, undefined, aCall())).rejects.toMatchObject({
      code: 'not-found',
    });
    expect(await list(host1)).toEqual([second]);
  });

  test('create one volume in two concurrent creates of one name; the other create fails', async () => {
    for (let round = 0; round < 10; round++) {
      const results = await Promise.allSettled([create(host1, `v${round}`), create(host2, `v${round}`)]);
      const made = results.filter((result) => result.status === 'fulfilled');
      const rejected = results.filter((result) => result.status === 'rejected');
      expect(made.length).toBe(1);
      expect(rejected[0]?.reason).toMatchObject({ code: 'exists', reason: 'volume-exists' });
    }
    expect((await list(host1)).length).toBe(10);
    expect(await list(host2)).toEqual(await list(host1));
  });

  test('refuse to delete or rename a volume that another host uses, even if that host is stale', async () => {
    const made = await create(host1, 'a');
    await host2.core.stores.use('silver', async (store) => {
      const use = { host: 'host-2', node: 'far' as never, users: [{ kind: 'container', name: 'db' }] } as const;
      await store.uses?.put(made, use, aCall());
    });
    const refusal = { code: 'in-use', message: expect.stringContaining('host far (host-2, container db)') };
    await expect(host1.core.deletions.delete(made.id, undefined, aCall())).rejects.toMatchObject(refusal);
    await expect(host1.core.volumes.rename(made.id, 'b', undefined, aCall())).rejects.toMatchObject(refusal);
    await host1.core.stores.use(
      'silver',
      (store) => store.uses?.remove(made.id, 'host-2', aCall()) ?? Promise.resolve(),
    );
    await host1.core.deletions.delete(made.id, undefined, aCall());
    expect(await list(host2)).toEqual([]);
  });
});

test.skipIf(lacks('mount'))(
  'a host that is rejected because another host is the writer publishes no use record',
  async () => {
    const made = await create(host1, 'a');
    const use = { host: 'elsewhere', node: 'elsewhere' as NodeName, users: [] };
    const { uses } = host1.core.stores.view('silver').store ?? {};
    await uses?.takeWriter(made, use.host, aCall());
    await uses?.put(made, use, aCall());
    const target = `${host1.folder}-m`;
    const publishOptions = { readOnly: false, user: undefined, singleNodeWriter: true };
    await expect(host1.core.mounts.publish(made.id, target, publishOptions, aCall())).rejects.toMatchObject({
      reason: 'volume-written-elsewhere',
    });
    expect((await host2.core.uses.list(made, aCall()))?.map(({ host }) => host)).toEqual(['elsewhere']);
  },
);
