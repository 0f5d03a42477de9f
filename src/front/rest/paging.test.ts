import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Api, startServer, type TestServer } from '#testing/server.ts';

let server: TestServer;
let api: Api;

beforeAll(async () => {
  server = await startServer();
  api = server.admin;
  await mkdir(join(server.folder, 'second'));
  await api.post('/v1/stores', { name: 'second', uri: `local://${join(server.folder, 'second')}` });
  const names = Array.from({ length: 1000 }, (_, i) => i);
  for (let i = 0; i < names.length; i += 50) {
    await Promise.all(
      names.slice(i, i + 50).map((n) =>
        api.post('/v1/volumes', {
          name: `v${String(n).padStart(4, '0')}`,
          store: n % 4 === 0 ? 'second' : 'local',
          labels: { parity: n % 2 === 0 ? 'even' : 'odd', tens: `${Math.floor(n / 10)}` },
        }),
      ),
    );
  }
});
afterAll(() => server[Symbol.asyncDispose]());

interface Item {
  readonly store: string;
  readonly name: string;
}

async function all(query: string, between: () => Promise<void> = async () => undefined): Promise<string[]> {
  const seen: string[] = [];
  for (let next: string | null = ''; next !== null; ) {
    const after: string = next === '' ? '' : `&after=${encodeURIComponent(next)}`;
    const { status, body } = await api.get(`/v1/volumes?${query}${after}`);
    expect(status).toBe(200);
    seen.push(...body.items.map((item: Item) => `${item.store}/${item.name}`));
    next = body.next;
    await between();
  }
  return seen;
}

test('a thousand volumes are listed in pages, by store and name, each once', async () => {
  for (const limit of [7, 100, 333, 1000]) {
    const seen = await all(`limit=${limit}`);
    expect(seen).toHaveLength(1000);
    expect(seen).toEqual([...new Set(seen)].sort());
  }
});

test('volumes created and deleted meanwhile do not affect the others', async () => {
  let round = 0;
  const seen = await all('limit=50', async () => {
    round++;
    // Before, at and after the reader's position.
    for (const name of [`a${round}`, `v0${round}x`, `z${round}`]) await api.post('/v1/volumes', { name });
    if (round > 1) await api.delete(`/v1/volumes/local..a${round - 1}`);
  });
  const stable = seen.filter((name) => /\/v\d{4}$/.test(name));
  expect(seen).toHaveLength(new Set(seen).size);
  expect(stable).toHaveLength(1000);
  expect(seen).toEqual([...seen].sort());
});

test('the last volume of a page can be deleted before the next is read', async () => {
  const { body } = await api.get('/v1/volumes?limit=1&store=second');
  await api.delete(`/v1/volumes/${body.items[0].id}`);
  const next = await api.get(`/v1/volumes?limit=1&store=second&after=${encodeURIComponent(body.next)}`);
  expect(next.body.items[0].name > body.items[0].name).toBe(true);
});

test('a full last page has no next page', async () => {
  const { body } = await api.get('/v1/volumes?limit=10&label=tens%3D5');
  expect(body.items).toHaveLength(10);
  expect(body.next).toBeNull();
});

describe('filters', () => {
  test.each([
    ['store=second', 249],
    ['label=parity%3Deven', 499],
    ['label=parity%3Dodd&label=tens%3D7', 5],
    ['label=parity%3Dnope', 0],
    ['contains=v099', 10],
    ['contains=v099&label=parity%3Dodd&store=local', 5],
    ['contains=%25', 0],
    ['contains=_', 0],
  ])('%s finds %d', async (query, count) => {
    const seen = (await all(`limit=100&${query}`)).filter((name) => /\/v\d{4}$/.test(name));
    expect(seen).toHaveLength(count);
  });

  test('a label value may contain an equals sign', async () => {
    await api.post('/v1/volumes', { name: 'eq', labels: { expr: 'a=b=c' } });
    expect(await all('label=expr%3Da%3Db%3Dc')).toEqual(['local/eq']);
  });

  test('an unknown store is reported', async () => {
    expect(await api.get('/v1/volumes?store=nope')).toMatchObject({ status: 404, body: { reason: 'store-unknown' } });
  });

  test('a position outside all stores gives an empty page', async () => {
    expect((await api.get('/v1/volumes?after=zzz%2Fzzz')).body).toEqual({ items: [], next: null, unanswered: [] });
  });
});
