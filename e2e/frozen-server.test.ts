import { chmod, mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import { needs } from '#testbed/needs.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { type Answer, type Stowage, startStowage } from './stowage.ts';

// One store's server hangs: requests for another store must not notice, and lists of all stores must be answered.

/** The limit for requests that don't involve the hanging server. It is less than any timeout for that server. */
const promptMs = 4_000;
/** The limit for requests that do: the store's `timeout`, or the time that a list waits, and some more. */
const boundedMs = 12_000;
const patience = { timeout: 30_000, interval: 200 };

let top: string;
let frozen: NfsServer;
let healthy: NfsServer;
let config: string;
let count = 0;

/** Fails as soon as the limit is over, and names the request. */
async function within(ms: number, server: Stowage, method: string, path: string, body?: object): Promise<Answer> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new Error(`${method} ${path} was not answered within ${ms} ms`)), ms);
  try {
    return await Promise.race([server.api(method, path, body), late]);
  } finally {
    clearTimeout(timer);
  }
}

const listed = ({ body }: Answer): unknown => (body['items'] as { name: string }[]).map(({ name }) => name);

async function started(): Promise<Stowage> {
  const server = await startStowage({ state: join(top, `state-${count}`), config });
  onTestFinished(() => server.stop());
  return server;
}

async function create(server: Stowage, store: string, name: string): Promise<void> {
  const { status, body } = await within(boundedMs, server, 'POST', '/v1/volumes', { store, name });
  expect(status, JSON.stringify(body)).toBe(201);
}

/** All operations of a user on one store. */
async function useOf(server: Stowage, store: string, name: string): Promise<void> {
  const prompt = async (status: number, method: string, path: string, body?: object): Promise<Answer> => {
    const answer = await within(promptMs, server, method, path, body);
    expect(answer.status, `${method} ${path}: ${JSON.stringify(answer.body)}`).toBe(status);
    return answer;
  };
  const { body: made } = await prompt(201, 'POST', '/v1/volumes', { store, name });
  // By its name without a store, for which only the default store is looked up.
  if (store === 'fine') expect((await prompt(200, 'GET', `/v1/volumes/${name}`)).body['id']).toBe(made['id']);
  await prompt(200, 'GET', `/v1/volumes/${made['id']}`);
  await prompt(200, 'PATCH', `/v1/volumes/${store}..${name}`, { labels: { team: 'blue' } });
  expect(listed(await prompt(200, 'GET', `/v1/volumes?store=${store}`))).toContain(name);
  expect((await prompt(200, 'GET', `/v1/stores/${store}`)).body['state']).toBe('open');
  await prompt(200, 'DELETE', `/v1/volumes/${store}..${name}`);
  expect(listed(await prompt(200, 'GET', `/v1/trash?store=${store}`))).toContain(name);
  await prompt(204, 'DELETE', `/v1/trash/${made['id']}`);
}

/** Repeats the work until the other promise resolves. */
async function meanwhile<T>(waiting: Promise<T>, work: (round: number) => Promise<unknown>): Promise<T> {
  let isOver = false;
  const end = (): void => {
    isOver = true;
  };
  waiting.then(end, end);
  for (let round = 0; !isOver; round++) await work(round);
  return await waiting;
}

describe.skipIf(needs('linux', 'root', 'ganesha'))('an NFS server that hangs', () => {
  beforeAll(async () => {
    top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-frozen-')));
    await chmod(top, 0o755);
    const start = async (name: string): Promise<NfsServer> => {
      await mkdir(join(top, name));
      return await startGanesha({
        exports: [{ path: join(top, name), tag: name }],
        signal: new AbortController().signal,
      });
    };
    [frozen, healthy] = await Promise.all([start('silver'), start('gold')]);
  });
  afterAll(async () => {
    await frozen?.[Symbol.asyncDispose]();
    await healthy?.[Symbol.asyncDispose]();
    await rm(top, { recursive: true });
  });

  beforeEach(async () => {
    count++;
    config = join(top, `stowage-${count}.yaml`);
    for (const store of ['fine', 'silver', 'gold']) await mkdir(join(top, store, `${count}`), { recursive: true });
    const uri = ({ host, nfsPort, mountPort }: NfsServer, store: string): string =>
      `nfs://${host}${top}/${store}/${count}?port=${nfsPort}&mountport=${mountPort}&timeout=5s&onDelete=archive`;
    const stores = {
      fine: `local://${top}/fine/${count}?onDelete=archive`,
      silver: uri(frozen, 'silver'),
      gold: uri(healthy, 'gold'),
    };
    await writeFile(config, JSON.stringify({ version: 1, default: 'fine', stores }));
    onTestFinished(() => frozen.thaw());
  });

  test('delays only requests for its own store, and everything continues when it is back', async () => {
    const server = await started();
    for (const store of ['fine', 'gold', 'silver']) await create(server, store, `of-${store}`);
    await frozen.freeze();

    // More requests than any pool has slots, sent before anything noticed that the server hangs.
    const waiting = Promise.all(
      Array.from({ length: 40 }, (_, i) =>
        within(boundedMs, server, 'POST', '/v1/volumes', { store: 'silver', name: `v${i}` }),
      ),
    );
    let uses = 0;
    const answers = await meanwhile(waiting, async (round) => {
      await Promise.all(['fine', 'gold'].map((store) => useOf(server, store, `${store}-${round}`)));
      uses++;
    });
    expect(uses).toBeGreaterThan(1);
    expect(new Set(answers.map(({ status, body }) => `${status} ${body['code']}`))).toEqual(new Set(['504 deadline']));
    frozen.thaw();
    await vi.waitFor(() => create(server, 'silver', 'after'), patience);
  });

  test('is named by lists of all stores, which are answered in time and delay no other request', async () => {
    const server = await started();
    for (const store of ['fine', 'gold', 'silver']) await create(server, store, `of-${store}`);
    await create(server, 'fine', 'trashed');
    await within(boundedMs, server, 'DELETE', '/v1/volumes/fine..trashed');
    await frozen.freeze();

    const paths = ['/v1/volumes', '/v1/trash', '/v1/stores', '/v1/volumes/in-no-store'];
    const waiting = Promise.all(paths.map((path) => within(boundedMs, server, 'GET', path)));
    const answers = await meanwhile(waiting, (round) => useOf(server, 'fine', `fine-${round}`));
    const [volumes, trash, stores, unknown] = answers as [Answer, Answer, Answer, Answer];
    expect([volumes.status, volumes.body['unanswered']]).toEqual([200, ['silver']]);
    // Its volumes as last seen, beside those of the stores that answer.
    expect(listed(volumes)).toEqual(expect.arrayContaining(['of-fine', 'of-gold', 'of-silver']));
    expect([trash.status, trash.body['unanswered']]).toEqual([200, ['silver']]);
    expect(listed(trash)).toContain('trashed');
    const states = (stores.body['items'] as { name: string; state: string }[]).map(({ name, state }) => [name, state]);
    expect(Object.fromEntries(states)).toEqual({ fine: 'open', gold: 'open', silver: 'not-answering' });
    expect([unknown.status, unknown.body['reason']]).toEqual([503, 'volume-lookup-incomplete']);
    // A second list doesn't wait for it again.
    const again = await within(promptMs, server, 'GET', '/v1/volumes');
    expect(again.body['unanswered']).toEqual(['silver']);

    frozen.thaw();
    await vi.waitFor(async () => {
      for (const path of ['/v1/volumes', '/v1/trash'])
        expect((await within(boundedMs, server, 'GET', path)).body['unanswered']).toEqual([]);
    }, patience);
  });

  test('does not keep Stowage from starting', async () => {
    await frozen.freeze();
    const server = await started();
    expect(server.output()).toContain("warning  store silver: store 'silver' is still being opened");
    await useOf(server, 'fine', 'x');
    frozen.thaw();
    await vi.waitFor(() => create(server, 'silver', 'x'), patience);
  });
});
