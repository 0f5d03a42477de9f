import { expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { refusing } from '#testing/fakes/refusing-store.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { type Answer, type ServerOptions, startServer, type TestServer } from '#testing/server.ts';
import { StowageError } from './errors.ts';

// The store is open, but its server no longer answers.

interface Started {
  readonly server: TestServer;
  readonly kind: GatedKind;
  readonly own: Awaited<ReturnType<typeof startOwnServer>>;
}

async function startSilentStore(options: ServerOptions = {}): Promise<Started> {
  const nfsServer = await startOwnServer({ path: '/export' });
  const kind = gated(createNfsStoreKind());
  const server = await startServer({ kinds: [createLocalStoreKind(), kind], ...options });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const { port } = nfsServer.server;
  await server.core.stores.add(
    'silver',
    `nfs://127.0.0.1/export?port=${port}&mountport=${port}&timeout=500ms&retries=0`,
    aCall(),
  );
  return { server, kind, own: nfsServer };
}

const stateIn = async ({ admin }: TestServer): Promise<unknown> =>
  (await admin.get('/v1/stores')).body.items.find(({ name }: { name: string }) => name === 'silver')?.state;

test('a store that does not answer is shown as such without waiting for it twice, and as open when it answers', async () => {
  const clock = createFakeClock();
  const { server, kind } = await startSilentStore({ clock });
  expect(await stateIn(server)).toBe('open');

  const gate = kind.close('ping', { deaf: true });
  const firstAnswer = stateIn(server);
  await gate.reached;
  clock.advance(3_000);
  expect(await firstAnswer).toBe('not-answering');
  // This request does not wait for the pending call: the clock stands still.
  expect(await stateIn(server)).toBe('not-answering');
  expect((await server.admin.get('/v1/stores/silver')).body).toMatchObject({
    state: 'not-answering',
    problem: {
      message: "the server of store 'silver' does not answer",
      action: expect.stringMatching(/stowage store check silver$/),
    },
  });
  expect((await server.admin.get('/v1/status')).body).toMatchObject({ stores: 2, storesInTrouble: ['silver'] });
  expect((await server.admin.get('/metrics')).text).toContain('stowage_store_open{store="silver"} 0');
  expect((await server.admin.get('/v1/volumes')).body).toMatchObject({ unanswered: ['silver'] });
  expect(gate.waiting()).toBe(1);

  gate.open();
  await vi.waitFor(async () => expect(await stateIn(server)).toBe('open'));
  expect((await server.admin.get('/v1/status')).body).toMatchObject({ storesInTrouble: [] });
  expect((await server.admin.get('/metrics')).text).toContain('stowage_store_open{store="silver"} 1');
});

interface RoomJson {
  readonly name: string;
  readonly totalBytes: string | null;
  readonly freeBytes: string | null;
}

test('the list and the metrics show free space without waiting for a store that does not answer', async () => {
  const clock = createFakeClock();
  const { server, kind } = await startSilentStore({ clock });
  const roomIn = async (store: string): Promise<RoomJson> =>
    (await server.admin.get('/v1/stores')).body.items.find(({ name }: RoomJson) => name === store);
  const freeBytes = async () => (await server.admin.get('/metrics')).text.match(/^stowage_store_free_bytes.*$/gm);
  for (const store of ['local', 'silver']) {
    const { totalBytes, freeBytes: free } = await roomIn(store);
    expect(BigInt(free ?? 0)).toBeGreaterThan(0n);
    expect(BigInt(totalBytes ?? 0)).toBeGreaterThanOrEqual(BigInt(free ?? 0));
  }
  expect(await freeBytes()).toEqual([expect.stringContaining('"local"'), expect.stringContaining('"silver"')]);

  const gate = kind.close('room', { deaf: true, store: 'silver' });
  const first = roomIn('silver');
  await gate.reached;
  clock.advance(2_000);
  const unknown = { totalBytes: null, freeBytes: null };
  expect(await first).toMatchObject(unknown);
  // This request does not wait for the pending call: the clock stands still.
  expect(await roomIn('silver')).toMatchObject(unknown);
  // The clock also advanced for the other stores, whose calls may have timed out, so their next answers may come later.
  await vi.waitFor(async () => expect(await freeBytes()).toEqual([expect.stringContaining('"local"')]));
  expect(gate.waiting()).toBe(1);

  gate.open();
  await vi.waitFor(async () => expect((await roomIn('silver')).freeBytes).not.toBeNull());
});

test('a store whose server was killed is shown as not answering, and as open when the server runs again', async () => {
  const { server, own } = await startSilentStore();
  expect(await stateIn(server)).toBe('open');
  await own.server.close();
  expect(await stateIn(server)).toBe('not-answering');
  await own.restart();
  await vi.waitFor(async () => expect(await stateIn(server)).toBe('open'), 20_000);
});

test('a store whose server no longer allows this host is shown as denying access, not as unresponsive', async () => {
  const { server, own } = await startSilentStore();
  const user = await server.as('user');
  await own.restart({ networks: ['192.0.2.0/24'] });
  const message =
    "the server of store 'silver' ends every connection from this host at once: most likely it does not allow this host, which is a permission problem, not a network problem";
  const action = 'Ask the administrator to grant Stowage access; the reason is found with: stowage store check silver';
  await vi.waitFor(async () => {
    const { body } = await user.get('/v1/stores/silver');
    expect(body).toMatchObject({ state: 'not-answering', problem: { message, action } });
  }, 20_000);
  const { body } = await user.get('/v1/volumes/silver..none');
  expect(body).toMatchObject({ status: 503, reason: 'volume-lookup-incomplete' });
  expect(body).toMatchObject({ detail: `volume 'silver/none' cannot be looked up: ${message}`, action });
  await own.restart();
  await vi.waitFor(async () => expect(await stateIn(server)).toBe('open'), 20_000);
  expect((await user.get('/v1/stores/silver')).body.problem).toBeNull();
});

test('a store that denies every request is shown with that problem until it allows them again', async () => {
  const nfsServer = await startOwnServer({ path: '/export' });
  const kind = refusing(createNfsStoreKind());
  const server = await startServer({ kinds: [createLocalStoreKind(), kind] });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const { port } = nfsServer.server;
  await server.core.stores.add('silver', `nfs://127.0.0.1/export?port=${port}&mountport=${port}`, aCall());
  const action = 'Have it exported to this host.';
  const error = new StowageError('it says no', { code: 'denied', reason: 'nfs-credential-denied', action });
  const verbs = (['changedByOthers.revisions', 'names'] as const).map((verb) => kind.fail(verb, error));
  const shown = async (): Promise<Answer['body']> => (await server.admin.get('/v1/stores/silver')).body;
  expect(await shown()).toMatchObject({ state: 'open', problem: null });
  expect((await server.admin.get('/v1/volumes')).body).toMatchObject({ unanswered: ['silver'] });
  const message = "access to store 'silver' is denied: this is a permission problem, not a network problem";
  const problem = { message, action: expect.stringMatching(/^Ask the administrator to grant Stowage access/) };
  for (let n = 0; n < 2; n++) expect(await shown()).toMatchObject({ state: 'open', problem });
  expect((await server.admin.get('/v1/stores')).body.items).toContainEqual(expect.objectContaining({ problem }));
  expect((await server.admin.get('/v1/status')).body).toMatchObject({ storesInTrouble: ['silver'] });
  for (const verb of verbs) verb.stop();
  expect(await shown()).toMatchObject({ state: 'open', problem: null });
  expect((await server.admin.get('/v1/status')).body).toMatchObject({ storesInTrouble: [] });
});

test('a store whose trash listing times out because its server no longer allows this host is shown as denying access', async () => {
  const clock = createFakeClock();
  const { server, kind, own } = await startSilentStore({ clock });
  const user = await server.as('user');
  await own.restart({ networks: ['192.0.2.0/24'] });
  const gate = kind.close('trash.list', { deaf: true, store: 'silver' });
  onTestFinished(() => gate.open());
  const listed = user.get('/v1/trash?store=silver');
  await gate.reached;
  clock.advance(10_000);
  expect((await listed).body).toMatchObject({
    status: 503,
    reason: 'store-access-denied',
    detail:
      "the server of store 'silver' ends every connection from this host at once: most likely it does not allow this host, which is a permission problem, not a network problem",
    action: 'Ask the administrator to grant Stowage access; the reason is found with: stowage store check silver',
  });
});

test('a store whose list takes long is not shown as unresponsive, and single names are still looked up', async () => {
  const clock = createFakeClock();
  const { server, kind } = await startSilentStore({ clock });
  const gate = kind.close('changedByOthers.revisions', { deaf: true, store: 'silver' });
  const listed = server.admin.get('/v1/volumes');
  await gate.reached;
  clock.advance(3_000);
  expect((await listed).body).toMatchObject({ unanswered: ['silver'] });
  expect((await server.admin.post('/v1/volumes', { store: 'silver', name: 'fresh' })).status).toBe(201);
  expect((await server.admin.get('/v1/volumes/silver..fresh')).status).toBe(200);
  expect((await server.admin.get('/v1/volumes/silver..none')).status).toBe(404);
  expect(await stateIn(server)).toBe('open');
  // The call for the list is still pending, and this request does not wait for it.
  expect((await server.admin.get('/v1/volumes')).body).toMatchObject({ unanswered: ['silver'] });
  expect(gate.waiting()).toBe(1);

  const ping = kind.close('ping', { deaf: true });
  const first = server.admin.get('/v1/volumes/silver..none');
  await ping.reached;
  clock.advance(2_000);
  expect((await first).status).toBe(503);
  expect((await server.admin.get('/v1/volumes/silver..none')).status).toBe(503);
  expect(ping.waiting()).toBe(1);
  ping.open();
  gate.open();
  await vi.waitFor(async () => expect((await server.admin.get('/v1/volumes')).body).toMatchObject({ unanswered: [] }));
  expect((await server.admin.get('/v1/volumes/silver..none')).status).toBe(404);
});
