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
import { locateNfsStore, refuseOverlaps } from './store-overlaps.ts';

// One server with two names, which the names do not reveal.

let port: string;
let kind: StoreKind;

beforeEach(async () => {
  const own = await startOwnServer({ path: '/export' });
  port = `${own.server.port}`;
  for (const name of ['inner', 'beside']) mkdirSync(join(own.directory, name));
  kind = refuseOverlaps(createNfsStoreKind(), locateNfsStore);
});

async function open(name: string, uri: string): Promise<Store> {
  const options = { port, mountport: port };
  const config: StoreConfig = { name: storeName(name), uri, origin: 'file', policy, options };
  const store = await kind.open(config, policy, { instance: 'i', node: 'n' as NodeName }, scope);
  onTestFinished(() => store.close());
  return store;
}

const overlap = { code: 'invalid', reason: 'store-overlaps' };

test('refuses a store inside another one', async () => {
  await open('outer', 'nfs://127.0.0.1/export');
  await expect(open('inner', 'nfs://localhost/export/inner')).rejects.toMatchObject({
    ...overlap,
    message: "store 'inner' at /export/inner overlaps the store at /export",
  });
});

test('refuses a store around another one, and opens it when that one is gone', async () => {
  const inner = await open('inner', 'nfs://localhost/export/inner');
  await expect(open('outer', 'nfs://127.0.0.1/export')).rejects.toMatchObject(overlap);
  const beside = await open('beside', 'nfs://127.0.0.1/export/beside');
  await Promise.all([inner.close(), beside.close()]);
  expect((await open('outer', 'nfs://127.0.0.1/export')).identity).toBeDefined();
});

test('refuses a second store in the same directory', async () => {
  await open('one', 'nfs://127.0.0.1/export');
  await expect(open('two', 'nfs://localhost/export')).rejects.toMatchObject({ reason: 'store-place-taken' });
});

test('accepts the same path on another server', async () => {
  const other = await startOwnServer({ path: '/export' });
  await open('outer', 'nfs://127.0.0.1/export');
  port = `${other.server.port}`;
  mkdirSync(join(other.directory, 'inner'));
  expect((await open('inner', 'nfs://127.0.0.1/export/inner')).identity).toBeDefined();
});

describe('one address in two networks', () => {
  /** The server at 10.0.0.1 depends on the network. */
  const servers: Readonly<Record<string, string>> = { 'netns:green': 'second', 'netns:yellow': 'third' };
  const server = (network: string | undefined): string => servers[network ?? ''] ?? 'first';
  const atAddress = refuseOverlaps(
    {
      scheme: 'nfs',
      placement: 'anywhere',
      options: {},
      open: async ({ uri, options: { network } }: StoreConfig) =>
        ({
          changedByOthers: {},
          identity: `${server(network)} ${new URL(uri).pathname}`,
          close: async () => undefined,
          identityOfSubdirectory: async (below: string) => `${server(network)} ${new URL(uri).pathname}/${below}`,
        }) as unknown as Store,
    } as unknown as StoreKind,
    locateNfsStore,
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

  test('can belong to two servers, whose stores do not conflict', async () => {
    await using opened = new AsyncDisposableStack();
    for (const [name, path, network] of [
      ['blue', '/export', 'docker:blue'],
      ['green', '/export', 'netns:green'],
      ['inner', '/export/inner', 'netns:yellow'],
    ] as const)
      opened.adopt(await openAt(name, path, network), (store) => store.close());
  });

  test('can belong to one server, whose stores conflict as with any two of its names', async () => {
    await using opened = new AsyncDisposableStack();
    opened.adopt(await openAt('blue', '/export', 'docker:blue'), (store) => store.close());
    await expect(openAt('host', '/export')).rejects.toMatchObject({ reason: 'store-place-taken' });
    await expect(openAt('host', '/export/inner')).rejects.toMatchObject(overlap);
    await expect(openAt('again', '/export', 'docker:blue')).rejects.toMatchObject({ reason: 'store-place-taken' });
  });
});
