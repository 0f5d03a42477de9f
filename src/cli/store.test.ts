import { expect, test } from 'vitest';
import { run, scriptedServer, store } from './scripted-server.ts';

const storage = store('silver', {
  ...{ kind: 'nfs', uri: 'nfs://10.10.2.4/export?network=netns:storage', network: 'netns:storage' },
});
const lines = (text: string): readonly string[] => text.trimEnd().split('\n');

test('a list says which stores have a network of their own, where any has', async () => {
  const page = (...items: readonly object[]): readonly [number, object] => [200, { items, next: null }];
  await using plain = await scriptedServer({ 'GET /v1/stores': page(store('local')) });
  expect((await run(plain, ['store', 'list'])).stdout).not.toContain('NETWORK');
  await using server = await scriptedServer({ 'GET /v1/stores': page(store('local'), storage) });
  const [head = '', local = '', silver = ''] = lines((await run(server, ['store', 'list'])).stdout);
  const at = head.indexOf('NETWORK');
  expect([local, silver].map((line) => line.slice(at).split(/\s/)[0])).toEqual(['-', 'netns:storage']);
  expect(head.slice(at)).toMatch(/^NETWORK +URI$/);
});

test('a store with a network of its own is shown with it', async () => {
  await using server = await scriptedServer({
    'GET /v1/stores/local': [200, store('local')],
    'GET /v1/stores/silver': [200, storage],
  });
  expect((await run(server, ['store', 'show', 'local'])).stdout).not.toMatch(/^network/m);
  expect((await run(server, ['store', 'show', 'silver'])).stdout).toMatch(/^network +netns:storage$/m);
});
