import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { NodeName, StoreConfig } from '#core/model.ts';
import { storeName } from '#core/names.ts';
import type { Store, StoreKind } from '#core/ports.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { scope } from '#testing/contracts/store.ts';
import { defaultPolicy as policy } from '#testing/default-policy.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
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

describe('one address in two networks', () => {
  /** Which server answers at 10.0.0.1 depends on the network. */
  const servers: Readonly<Record<string, string>> = { 'netns:green': 'second', 'netns:yellow': 'third' };
  const server = (network: string | undefined): string => servers[network ?? ''] ?? 'first';
  const atAddress = keepApart(
    {
      scheme: 'nfs',
      placement: 'anywhere',
      options: {},
      open: async ({ uri, options: { network } }: StoreConfig) =>
        ({
          changedByOthers: {},
          identity: `${server(network)} ${new URL(uri).pathname}`,
          close: async () => undefined,
          identityBelow: async (below: string) => `${server(network)} ${new URL(uri).pathname}/${below}`,
        }) as unknown as Store,
    } as unknown as StoreKind,
    nfsPlace,
  );
  const openAt = (name: string, path: string, network?: string): Promise<Store> => {
    const options = network === undefined ? {} : { network };
    const config: StoreConfig = {
      name: storeName(name),
      uri: `nfs://10.0.0.1${path}`,
      origin: 'file',
      policy,
      options,
    };
    return atAddress.open(config, policy, { instance: 'i', node: 'n' as NodeName }, scope);
  };

  test('may be two servers: then no store of one is in the way of one of the other', async () => {
    await using opened = new AsyncDisposableStack();
    for (const [name, path, network] of [
      ['blue', '/export', 'docker:blue'],
      ['green', '/export', 'netns:green'],
      ['inner', '/export/inner', 'netns:yellow'],
    ] as const)
      opened.adopt(await openAt(name, path, network), (store) => store.close());
  });

  test('may be one server: then its stores are kept apart as by any two names of it', async () => {
    await using opened = new AsyncDisposableStack();
    opened.adopt(await openAt('blue', '/export', 'docker:blue'), (store) => store.close());
    await expect(openAt('host', '/export')).rejects.toMatchObject({ reason: 'store-place-taken' });
    await expect(openAt('host', '/export/inner')).rejects.toMatchObject(overlap);
    await expect(openAt('again', '/export', 'docker:blue')).rejects.toMatchObject({ reason: 'store-place-taken' });
  });
});
