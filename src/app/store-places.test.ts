import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import type { NodeName, StoreConfig } from '#core/model.ts';
import { storeName } from '#core/names.ts';
import type { Store, StoreKind } from '#core/ports.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { scope } from '#testing/contracts/store.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { plainPolicy as policy } from '#testing/policy.ts';
import { keepApart, nfsPlace } from './store-places.ts';

// One server by two names, which nobody can tell from the names.

let port: string;
let kind: StoreKind;

beforeEach(async () => {
  const own = await startOwnServer({ path: '/export' });
  port = `${own.server.port}`;
  for (const name of ['inner', 'beside']) mkdirSync(join(own.directory, name));
  kind = keepApart(createNfsStoreKind(), nfsPlace);
});

async function open(name: string, uri: string): Promise<Store> {
  const options = { port, mountport: port };
  const config: StoreConfig = { name: storeName(name), uri, origin: 'file', policy, options };
  const store = await kind.open(config, policy, { instance: 'i', node: 'n' as NodeName }, scope);
  onTestFinished(() => store.close());
  return store;
}

const overlap = { code: 'invalid', reason: 'store-overlaps' };

test('a store inside another one is refused', async () => {
  await open('outer', 'nfs://127.0.0.1/export');
  await expect(open('inner', 'nfs://localhost/export/inner')).rejects.toMatchObject({
    ...overlap,
    message: "store 'inner' at /export/inner overlaps the store at /export",
  });
});

test('a store around another one is refused, and can be opened when that one is gone', async () => {
  const inner = await open('inner', 'nfs://localhost/export/inner');
  await expect(open('outer', 'nfs://127.0.0.1/export')).rejects.toMatchObject(overlap);
  const beside = await open('beside', 'nfs://127.0.0.1/export/beside');
  await Promise.all([inner.close(), beside.close()]);
  expect((await open('outer', 'nfs://127.0.0.1/export')).identity).toBeDefined();
});

test('the same directory twice is refused', async () => {
  await open('one', 'nfs://127.0.0.1/export');
  await expect(open('two', 'nfs://localhost/export')).rejects.toMatchObject({ reason: 'store-place-taken' });
});

test('another server that has the same paths is no trouble', async () => {
  const other = await startOwnServer({ path: '/export' });
  await open('outer', 'nfs://127.0.0.1/export');
  port = `${other.server.port}`;
  mkdirSync(join(other.directory, 'inner'));
  expect((await open('inner', 'nfs://127.0.0.1/export/inner')).identity).toBeDefined();
});
