import { chmod, mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { type Answer, type Stowage, startStowage } from './stowage.ts';

// The server of one store hangs. Requests for other stores must not be delayed, and lists of all stores must be
// answered.

/** The limit for requests that don't need the hanging server. It is shorter than any timeout for that server. */
const promptMs = 4_000;
/**
 * The limit for requests that need the hanging server: the store's `timeout`, or the time that a list waits, and some
 * more.
 */
const boundedMs = 12_000;
const pollOptions = { timeout: 30_000, interval: 200 };

let testFolder: string;
let frozenServer: NfsServer;
let healthyServer: NfsServer;
let config: string;
let count = 0;

/** Calls the API. Fails as soon as the limit is exceeded, and names the request. */
async function callWithin(ms: number, server: Stowage, method: string, path: string, body?: object): Promise<Answer> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new Error(`${method} ${path} was not answered within ${ms} ms`)), ms);
  try {
    return await Promise.race([server.api(method, path, body), late]);
  } finally {
    clearTimeout(timer);
  }
}

const namesOf = ({ body }: Answer): unknown => (body['items'] as { name: string }[]).map(({ name }) => name);

async function startServer(): Promise<Stowage> {
  const server = await startStowage({ state: join(testFolder, `state-${count}`), config });
  onTestFinished(() => server.stop());
  return server;
}

async function create(server: Stowage, store: string, name: string): Promise<void> {
  const { status, body } = await callWithin(boundedMs, server, 'POST', '/v1/volumes', { store, name });
  expect(status, JSON.stringify(body)).toBe(201);
}

/** Runs every API operation that a user may run on a store. */
async function useStore(server: Stowage, store: string, name: string): Promise<void> {
  const callPromptly = async (status: number, method: string, path: string, body?: object): Promise<Answer> => {
    const answer = await callWithin(promptMs, server, method, path, body);
    expect(answer.status, `${method} ${path}: ${JSON.stringify(answer.body)}`).toBe(status);
    return answer;
  };
  const { body: made } = await callPromptly(201, 'POST', '/v1/volumes', { store, name });
  // The name without a store is looked up in the default store only.
  if (store === 'fine') expect((await callPromptly(200, 'GET', `/v1/volumes/${name}`)).body['id']).toBe(made['id']);
  await callPromptly(200, 'GET', `/v1/volumes/${made['id']}`);
  await callPromptly(200, 'PATCH', `/v1/volumes/${store}..${name}`, { labels: { team: 'blue' } });
  expect(namesOf(await callPromptly(200, 'GET', `/v1/volumes?store=${store}`))).toContain(name);
  expect((await callPromptly(200, 'GET', `/v1/stores/${store}`)).body['state']).toBe('open');
  await callPromptly(200, 'DELETE', `/v1/volumes/${store}..${name}`);
  expect(namesOf(await callPromptly(200, 'GET', `/v1/trash?store=${store}`))).toContain(name);
  await callPromptly(204, 'DELETE', `/v1/trash/${made['id']}`);
}

/** Repeats the work until the other promise resolves. */
async function repeatUntil<T>(waiting: Promise<T>, work: (round: number) => Promise<unknown>): Promise<T> {
  let isOver = false;
  const end = (): void => {
    isOver = true;
  };
  waiting.then(end, end);
  for (let round = 0; !isOver; round++) await work(round);
  return await waiting;
}

describe.skipIf(lacks('linux', 'root', 'ganesha'))('an NFS server that hangs', () => {
  beforeAll(async () => {
    testFolder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-frozen-')));
    await chmod(testFolder, 0o755);
    const start = async (name: string): Promise<NfsServer> => {
      await mkdir(join(testFolder, name));
      return await startGanesha({
        exports: [{ path: join(testFolder, name), tag: name }],
        signal: new AbortController().signal,
      });
    };
    [frozenServer, healthyServer] = await Promise.all([start('silver'), start('gold')]);
  });
  afterAll(async () => {
    await frozenServer?.[Symbol.asyncDispose]();
    await healthyServer?.[Symbol.asyncDispose]();
    await rm(testFolder, { recursive: true });
  });

  beforeEach(async () => {
    count++;
    config = join(testFolder, `stowage-${count}.yaml`);
    for (const store of ['fine', 'silver', 'gold'])
      await mkdir(join(testFolder, store, `${count}`), { recursive: true });
    const uri = ({ host, nfsPort, mountPort }: NfsServer, store: string): string =>
      `nfs://${host}${testFolder}/${store}/${count}?port=${nfsPort}&mountport=${mountPort}&timeout=5s&onDelete=archive`;
    const stores = {
      fine: `local://${testFolder}/fine/${count}?onDelete=archive`,
      silver: uri(frozenServer, 'silver'),
      gold: uri(healthyServer, 'gold'),
    };
    await writeFile(config, JSON.stringify({ version: 1, default: 'fine', stores }));
    onTestFinished(() => frozenServer.thaw());
  });

  test('delays only requests for its own store, and everything works again when the server is back', async () => {
    const server = await startServer();
    for (const store of ['fine', 'gold', 'silver']) await create(server, store, `of-${store}`);
    await frozenServer.freeze();

    // More requests than any pool has slots, sent before Stowage noticed that the server hangs.
    const waiting = Promise.all(
      Array.from({ length: 40 }, (_, i) =>
        callWithin(boundedMs, server, 'POST', '/v1/volumes', { store: 'silver', name: `v${i}` }),
      ),
    );
    let uses = 0;
    const answers = await repeatUntil(waiting, async (round) => {
      await Promise.all(['fine', 'gold'].map((store) => useStore(server, store, `${store}-${round}`)));
      uses++;
    });
    expect(uses).toBeGreaterThan(1);
    expect(new Set(answers.map(({ status, body }) => `${status} ${body['code']}`))).toEqual(new Set(['504 deadline']));
    frozenServer.thaw();
    await vi.waitFor(() => create(server, 'silver', 'after'), pollOptions);
  });

  test('is named in lists of all stores, which are answered in time and delay no other request', async () => {
    const server = await startServer();
    for (const store of ['fine', 'gold', 'silver']) await create(server, store, `of-${store}`);
    await create(server, 'fine', 'trashed');
    await callWithin(boundedMs, server, 'DELETE', '/v1/volumes/fine..trashed');
    await frozenServer.freeze();

    const paths = ['/v1/volumes', '/v1/trash', '/v1/stores', '/v1/volumes/in-no-store'];
    const waiting = Promise.all(paths.map((path) => callWithin(boundedMs, server, 'GET', path)));
    const answers = await repeatUntil(waiting, (round) => useStore(server, 'fine', `fine-${round}`));
    const [volumes, trash, stores, unknown] = answers as [Answer, Answer, Answer, Answer];
    expect([volumes.status, volumes.body['unanswered']]).toEqual([200, ['silver']]);
    // The list contains the last known volumes of that store, and the volumes of the other stores.
    expect(namesOf(volumes)).toEqual(expect.arrayContaining(['of-fine', 'of-gold', 'of-silver']));
    expect([trash.status, trash.body['unanswered']]).toEqual([200, ['silver']]);
    expect(namesOf(trash)).toContain('trashed');
    const states = (stores.body['items'] as { name: string; state: string }[]).map(({ name, state }) => [name, state]);
    expect(Object.fromEntries(states)).toEqual({ fine: 'open', gold: 'open', silver: 'not-answering' });
    expect([unknown.status, unknown.body['reason']]).toEqual([503, 'volume-lookup-incomplete']);
    // A second list doesn't wait for the store again.
    const secondAnswer = await callWithin(promptMs, server, 'GET', '/v1/volumes');
    expect(secondAnswer.body['unanswered']).toEqual(['silver']);

    frozenServer.thaw();
    await vi.waitFor(async () => {
      for (const path of ['/v1/volumes', '/v1/trash'])
        expect((await callWithin(boundedMs, server, 'GET', path)).body['unanswered']).toEqual([]);
    }, pollOptions);
  });

  test('does not prevent the start of Stowage', async () => {
    await frozenServer.freeze();
    const server = await startServer();
    expect(server.output()).toContain("warning  store silver: store 'silver' is still being opened");
    await useStore(server, 'fine', 'x');
    frozenServer.thaw();
    await vi.waitFor(() => create(server, 'silver', 'x'), pollOptions);
  });
});
