import { mkdir, mkdtemp, readdir, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall, runMaintenance } from '#testing/core-calls.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { replaceVerbs } from '#testing/fakes/wrapped-store.ts';
import { type Answer, type ServerOptions, startServer, type TestServer } from '#testing/server.ts';

let folder: string;
let kind: GatedKind;
let clock: FakeClock;

beforeEach(async () => {
  folder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-hung-')));
  for (const name of ['a', 'b', 'c']) await mkdir(join(folder, name));
  kind = gated(createLocalStoreKind());
  clock = createFakeClock();
  onTestFinished(() => rm(folder, { recursive: true }));
});

async function startHungServer(options: ServerOptions = {}): Promise<TestServer> {
  const server = await startServer({ listen: 'none', kinds: [kind], clock, ...options });
  onTestFinished(() => server[Symbol.asyncDispose]());
  return server;
}

const add = (server: TestServer, name: string, query = '') =>
  server.core.stores.add(name, `local://${folder}/${name}${query}`, aCall());

/** Starts a server with store `a`, and a call on `a` that does not end before the gate opens. */
async function startWithBusyStore() {
  const server = await startHungServer();
  await add(server, 'a');
  await server.admin.post('/v1/volumes', { store: 'a', name: 'x' });
  const gate = kind.close('label', { deaf: true });
  const labelled = server.admin.patch('/v1/volumes/a..x', { labels: { l: '1' } });
  await gate.reached;
  return { server, gate, labelled };
}

describe('a call on a disk that does not answer', () => {
  test('is answered at its deadline, continues in the background, and keeps its volume locked until it ends', async () => {
    const server = await startHungServer();
    await add(server, 'a');
    const gate = kind.close('create', { deaf: true, store: 'a' });
    const first = server.admin.post('/v1/volumes', { store: 'a', name: 'x' });
    await gate.reached;
    // This request waits for the lock of the first one.
    const second = server.admin.post('/v1/volumes', { store: 'a', name: 'x' });
    expect(await server.admin.post('/v1/volumes', { name: 'y' })).toMatchObject({ status: 201 });
    clock.advance(120_000);
    clock.advance(2_000);
    expect(await first).toMatchObject({ status: 504, body: { code: 'deadline', reason: 'still-running' } });
    expect((await second).status).toBe(504);
    const [operation] = (await server.admin.get('/v1/operations')).body.items.filter(
      ({ subject }: { subject: string }) => subject === 'a/x',
    );
    expect(operation).toMatchObject({ kind: 'volume.create', state: 'running' });
    expect(gate.waiting()).toBe(1);
    gate.open();
    await vi.waitFor(async () => {
      expect((await server.admin.get(`/v1/operations/${operation.id}`)).body).toMatchObject({
        state: 'failed',
        error: { code: 'deadline' },
      });
    });
    expect(await readdir(join(folder, 'a'))).toEqual(['.stowage']);
    expect((await server.admin.post('/v1/volumes', { store: 'a', name: 'x' })).status).toBe(201);
  });

  test('answers a read at its deadline', async () => {
    const server = await startHungServer();
    await add(server, 'a');
    await server.admin.post('/v1/volumes', { store: 'a', name: 'x' });
    const gate = kind.close('usage', { deaf: true });
    const read = server.admin.get('/v1/volumes/a..x/usage');
    await gate.reached;
    clock.advance(60_000);
    clock.advance(2_000);
    expect((await read).status).toBe(504);
    gate.open();
  });

  test('makes a check report that the store does not answer', async () => {
    const server = await startHungServer();
    await add(server, 'a');
    const gate = kind.close('check', { deaf: true });
    const check = server.core.stores.check('a', aCall());
    await gate.reached;
    clock.advance(15_000);
    expect(await check).toMatchObject({ ok: false, steps: [{ step: 'answer', detail: 'no answer within 15 s' }] });
    gate.open();
  });

  test('makes a listing skip a shared store that does not answer, without a second wait', async () => {
    const server = await startHungServer();
    await mkdir(join(folder, 'b', 'seen'));
    await add(server, 'b', '?readOnly=true');
    await server.admin.post('/v1/volumes', { name: 'here' });
    const gate = kind.close('names', { deaf: true, store: 'b' });
    const first = server.admin.get('/v1/volumes');
    await gate.reached;
    clock.advance(10_000);
    const asLastSeen = { items: [{ name: 'seen' }, { name: 'here' }], unanswered: ['b'] };
    expect((await first).body).toMatchObject(asLastSeen);
    expect((await server.admin.get('/v1/volumes')).body).toMatchObject(asLastSeen);
    expect((await server.admin.get('/v1/volumes?store=local')).body).toMatchObject({ unanswered: [] });
    expect(gate.waiting()).toBe(1);
    gate.open();
    await vi.waitFor(async () =>
      expect((await server.admin.get('/v1/volumes')).body).toMatchObject({ ...asLastSeen, unanswered: [] }),
    );
  });

  test('is not revealed by listings if the store is outside the scope of the token', async () => {
    const server = await startHungServer({ listen: '127.0.0.1:0' });
    await add(server, 'b', '?readOnly=true');
    const api = await server.as('viewer', 'local');
    await rm(join(folder, 'b'), { recursive: true });
    expect((await server.admin.get('/v1/volumes')).body.unanswered).toEqual(['b']);
    expect((await api.get('/v1/volumes')).body.unanswered).toEqual([]);
    await mkdir(join(folder, 'b'));
  });
});

describe('opening a store whose disk does not answer', () => {
  test('delays neither the start of the server nor other stores', async () => {
    const config = join(folder, 'stowage.yaml');
    await writeFile(config, `stores:\n  a: local://${folder}/a\n  b: local://${folder}/b\n`);
    const gate = kind.close('open', { deaf: true, store: 'b' });
    const starting = startHungServer({ config });
    await gate.reached;
    clock.advance(500);
    const server = await starting;
    expect((await server.admin.post('/v1/volumes', { store: 'a', name: 'x' })).status).toBe(201);
    expect(server.core.stores.view('b').problem).toMatchObject({ code: 'unavailable', reason: 'store-opening' });
    // Retries of the store don't start a second attempt.
    let tended = false;
    void runMaintenance(server.core).then(() => {
      tended = true;
    });
    await vi.waitFor(() => {
      clock.advance(500);
      expect(tended).toBe(true);
    });
    expect(gate.waiting()).toBe(1);
    gate.open();
    expect((await server.admin.post('/v1/volumes', { store: 'b', name: 'x' })).status).toBe(201);
  });
});

describe('an abandoned attempt to open a store', () => {
  const names = async (server: TestServer): Promise<string[]> =>
    (await server.admin.get('/v1/volumes')).body.items.map(({ name }: { name: string }) => name);

  test('does not touch the store that has the name by now', async () => {
    const config = join(folder, 'stowage.yaml');
    const configureFolder = (place: string): Promise<void> =>
      writeFile(config, `stores:\n  a: local://${folder}/${place}\n`);
    await configureFolder('a');
    await mkdir(join(folder, 'a', 'ghost'));
    const gate = kind.close('open', { deaf: true });
    const starting = startHungServer({ config });
    await gate.reached;
    clock.advance(500);
    const server = await starting;
    await configureFolder('b');
    await server.running.reload();
    expect(server.core.stores.view('a')).toMatchObject({
      config: { uri: `local://${folder}/b` },
      problem: { reason: 'store-opening' },
    });
    gate.open();
    await vi.waitFor(async () => {
      await runMaintenance(server.core);
      expect(server.core.stores.view('a').problem).toBeUndefined();
    });
    expect((await server.admin.post('/v1/volumes', { name: 'precious' })).status).toBe(201);
    expect(await names(server)).toEqual(['precious']);
    // The abandoned attempt created nothing in its directory.
    expect(await readdir(join(folder, 'a'))).toEqual(['ghost']);
  });

  test('prevents a second attempt with the same name until the disk answers', async () => {
    const server = await startHungServer();
    const gate = kind.close('open', { deaf: true, store: 'a' });
    const first = add(server, 'a');
    const rejectedAdd = expect(first).rejects.toMatchObject({ reason: 'store-opening' });
    await gate.reached;
    clock.advance(60_000);
    await rejectedAdd;
    await expect(add(server, 'a')).rejects.toMatchObject({ reason: 'store-opening' });
    expect(gate.waiting()).toBe(1);
    gate.open();
    await vi.waitFor(() => add(server, 'a'));
    expect((await server.admin.post('/v1/volumes', { store: 'a', name: 'x' })).status).toBe(201);
  });

  test('does not succeed after the server has stopped', async () => {
    const config = join(folder, 'stowage.yaml');
    await writeFile(config, `stores:\n  late: local://${folder}/late\n`);
    const server = await startHungServer({ config });
    await mkdir(join(folder, 'late'));
    // Opens the store for a check whose caller gets its answer at the deadline.
    const gate = kind.close('open', { deaf: true });
    const check = server.admin.post('/v1/stores/late/check');
    await gate.reached;
    clock.advance(15_000);
    expect((await check).body).toMatchObject({ ok: false });
    let isStopped = false;
    void server.stop().then(() => {
      isStopped = true;
    });
    await vi.waitFor(() => {
      clock.advance(5_000);
      expect(isStopped).toBe(true);
    });
    gate.open();
    // Enough time for the opening to continue.
    await delay(200);
    expect(await readdir(join(folder, 'late'))).toEqual([]);
  });

  test('leaves no records of a store that was removed', async () => {
    const server = await startHungServer();
    await add(server, 'a');
    await server.admin.post('/v1/volumes', { store: 'a', name: 'x' });
    const { folder: state } = server;
    await server.stop();
    const gate = kind.close('open', { deaf: true, store: 'a' });
    const starting = startServer({ listen: 'none', kinds: [kind], clock, folder: state });
    await gate.reached;
    clock.advance(500);
    const restarted = await starting;
    expect((await restarted.admin.delete('/v1/stores/a')).status).toBe(204);
    gate.open();
    await vi.waitFor(() => add(restarted, 'a').then(() => restarted.core.stores.remove('a', aCall())));
    expect(await names(restarted)).toEqual([]);
    await restarted.stop();
  });
});

describe('while a store does not answer or is closed', () => {
  test('a volume is restored from the trash of another store', async () => {
    const server = await startHungServer();
    await add(server, 'a', '?onDelete=archive');
    await add(server, 'b');
    const { body } = await server.admin.post('/v1/volumes', { store: 'a', name: 'x' });
    await server.admin.delete('/v1/volumes/a..x');
    const gate = kind.close('trash.list', { deaf: true, store: 'b' });
    expect((await server.admin.post(`/v1/trash/${body.id}/restore`)).status).toBe(200);
    gate.open();
  });

  test('the trash of the other stores is listed, and the store that does not answer is named', async () => {
    const server = await startHungServer({ listen: '127.0.0.1:0' });
    await add(server, 'a', '?onDelete=archive');
    await add(server, 'b', '?onDelete=archive');
    const { body } = await server.admin.post('/v1/volumes', { store: 'a', name: 'x' });
    await server.admin.delete('/v1/volumes/a..x');
    expect((await server.admin.get('/v1/trash')).body).toMatchObject({ items: [{ id: body.id }], unanswered: [] });
    const gate = kind.close('trash.list', { deaf: true, store: 'b' });
    /** Advances the clock as soon as the silent store has received another call. */
    const answerAfterTimeout = async (asked: Promise<Answer>): Promise<Answer> => {
      const waitingCalls = gate.waiting();
      await vi.waitFor(() => expect(gate.waiting()).toBeGreaterThan(waitingCalls));
      clock.advance(10_000);
      return await asked;
    };
    expect((await answerAfterTimeout(server.admin.get('/v1/trash'))).body).toMatchObject({
      items: [{ id: body.id }],
      unanswered: ['b'],
    });
    expect((await (await server.as('viewer', 'a')).get('/v1/trash')).body).toMatchObject({
      items: [{ id: body.id }],
      unanswered: [],
    });
    const silentTrashAnswer = { status: 503, body: { code: 'unavailable', reason: 'store-silent' } };
    expect(await answerAfterTimeout(server.admin.get('/v1/trash?store=b'))).toMatchObject(silentTrashAnswer);
    const unknown = '/v1/trash/sv1-00000000-0000-4000-8000-000000000000';
    expect(await answerAfterTimeout(server.admin.post(`${unknown}/restore`))).toMatchObject(silentTrashAnswer);
    expect(await answerAfterTimeout(server.admin.delete(unknown))).toMatchObject(silentTrashAnswer);
    gate.open();
  });

  test('a store that could not be opened is named in the list of the trash', async () => {
    const config = join(folder, 'stowage.yaml');
    await writeFile(config, `stores:\n  b: local://${folder}/b\n`);
    await rm(join(folder, 'b'), { recursive: true });
    const server = await startHungServer({ config });
    const { status, body } = await server.admin.get('/v1/trash');
    expect({ status, body }).toMatchObject({ status: 200, body: { unanswered: ['b'] } });
  });

  test('a store that could not be opened does not keep the identity of the store that had the name before', async () => {
    const server = await startHungServer();
    await add(server, 'a');
    await server.core.stores.remove('a', aCall());
    const sweep = kind.close('housekeeping.sweep');
    const failing = new AbortController();
    const secondAdd = server.core.stores.add('a', `local://${folder}/b`, aCall({ signal: failing.signal }));
    const rejectedAdd = expect(secondAdd).rejects.toThrow();
    await sweep.reached;
    failing.abort(new Error('no more'));
    await rejectedAdd;
    sweep.open();
    await vi.waitFor(() => server.core.stores.add('a', `local://${folder}/b`, aCall()));
    expect(server.core.stores.view('a').problem).toBeUndefined();
  });
});

describe('closing a store', () => {
  test('that is in use fails after a while and leaves the store open', async () => {
    const { server, gate, labelled } = await startWithBusyStore();
    const removal = server.admin.delete('/v1/stores/a');
    await vi.waitFor(() => expect(server.core.stores.view('a').store).toBeUndefined());
    clock.advance(30_000);
    expect(await removal).toMatchObject({ status: 409, body: { code: 'busy', reason: 'store-busy' } });
    expect((await server.admin.post('/v1/volumes', { store: 'a', name: 'y' })).status).toBe(201);
    gate.open();
    expect((await labelled).status).toBe(200);
    expect((await server.admin.delete('/v1/stores/a')).status).toBe(204);
  });

  test('does not wait for the reclaim of space, which continues when the store is back', async () => {
    const server = await startHungServer();
    await add(server, 'a');
    await server.admin.post('/v1/volumes', { store: 'a', name: 'x' });
    const gate = kind.close('housekeeping.reclaim', { store: 'a' });
    expect((await server.admin.delete('/v1/volumes/a..x')).status).toBe(200);
    await vi.waitFor(() => {
      clock.advance(250);
      expect(gate.waiting()).toBe(1);
    });
    expect((await server.admin.delete('/v1/stores/a')).status).toBe(204);
    gate.open();
  });
});

describe('closing a store on a disk that does not answer', () => {
  test('does not block changes of other stores', async () => {
    const neverClosingKind: typeof kind = {
      ...kind,
      open: async (config, ...rest) => {
        const store = await kind.open(config, ...rest);
        return config.name === 'a' ? replaceVerbs(store, { close: () => new Promise(() => undefined) }) : store;
      },
    };
    const server = await startHungServer({ kinds: [neverClosingKind] });
    await add(server, 'a');
    const removal = server.admin.delete('/v1/stores/a');
    await vi.waitFor(() => expect(server.core.stores.view('a').store).toBeUndefined());
    clock.advance(5_000);
    expect((await removal).status).toBe(204);
    await add(server, 'b');
  });

  test('resumes the reclaim of space if the store stays open', async () => {
    const { server, gate, labelled } = await startWithBusyStore();
    await server.admin.post('/v1/volumes', { store: 'a', name: 'y' });
    const freeing = kind.close('housekeeping.reclaim', { store: 'a' });
    await server.admin.delete('/v1/volumes/a..y');
    await vi.waitFor(() => {
      clock.advance(250);
      expect(freeing.waiting()).toBe(1);
    });
    const removal = server.admin.delete('/v1/stores/a');
    await vi.waitFor(() => expect(server.core.stores.view('a').store).toBeUndefined());
    clock.advance(30_000);
    expect((await removal).status).toBe(409);
    await runMaintenance(server.core);
    await vi.waitFor(() => {
      clock.advance(250);
      expect(freeing.waiting()).toBe(2);
    });
    freeing.open();
    gate.open();
    await labelled;
  });
});

describe('a change of configuration', () => {
  const configs = (server: TestServer, uri: string) => {
    const { config } = server.core.stores.view('a');
    const url = new URL(uri);
    const onDelete = url.searchParams.get('onDelete') === 'retain' ? 'retain' : 'delete';
    const mode = url.searchParams.get('mode');
    return [
      {
        ...config,
        origin: 'file',
        uri,
        policy: { ...config.policy, onDelete },
        options: mode === null ? {} : { mode },
      },
    ] as const;
  };

  test('that is not possible while the store is in use is shown as pending and applied later', async () => {
    const { server, gate, labelled } = await startWithBusyStore();
    const storeBefore = server.core.stores.view('a').store;
    await server.core.stores.configure(configs(server, `local://${folder}/a?onDelete=retain`), undefined, aCall());
    expect(server.core.stores.view('a')).toMatchObject({ pending: undefined, store: storeBefore });
    expect((await server.admin.get('/v1/stores/a')).body).toMatchObject({ onDelete: 'retain', pending: null });

    const uri = `local://${folder}/a?mode=0700`;
    const reloaded = server.core.stores.configure(configs(server, uri), undefined, aCall());
    await vi.waitFor(() => expect(server.core.stores.view('a').store).toBeUndefined());
    clock.advance(30_000);
    await reloaded;
    expect((await server.admin.get('/v1/stores/a')).body).toMatchObject({
      uri: `local://${folder}/a?onDelete=retain`,
      pending: expect.stringContaining('its options changed; the change is pending'),
    });
    gate.open();
    await labelled;
    await runMaintenance(server.core);
    expect((await server.admin.get('/v1/stores/a')).body).toMatchObject({ uri, pending: null, state: 'open' });
  });
});
