import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import type { Operation, OperationId } from '#core/model.ts';
import type { OperationView } from '#core/operations.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall, collectingLog, waitForOptions } from '#testing/core-calls.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { type Answer, type Api, startServer, type TestServer } from '#testing/server.ts';
import { operationJson } from './json.ts';
import type { Principal } from './principal.ts';

// What callers other than the administrator see of a network store: never its address, and nothing else on its server.

const secrets = /127\.0\.0\.1|\/export|exported|timeout=/;
const ask = /sk the administrator, who finds out why/;
const kinds = [createLocalStoreKind(), createNfsStoreKind()];

let server: TestServer;
let log: ReturnType<typeof collectingLog>;
let own: Awaited<ReturnType<typeof startOwnServer>>;
let others: Readonly<Record<string, Api>>;

beforeEach(async () => {
  own = await startOwnServer({ path: '/export' });
  log = collectingLog();
  server = await startServer({ kinds, log });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const { port } = own.server;
  const known = new Map(kinds.map((kind) => [kind.scheme, kind]));
  const at = (name: string, path: string) =>
    parseStoreConfig(name, `nfs://127.0.0.1:${port}${path}?mountport=${port}&timeout=5s&retries=0`, 'file', known);
  await server.core.stores.configure([at('silver', '/export'), at('lost', '/elsewhere')], undefined, aCall());
  // Configuring waits only a limited time for slow stores.
  await vi.waitFor(() => {
    expect(server.core.stores.view('silver').store).toBeDefined();
    expect(server.core.stores.view('lost').problem?.reason).not.toBe('store-opening');
  }, waitForOptions);
  others = {
    'a viewer of some stores': await server.as('viewer', 'silver', 'lost'),
    'a user': await server.as('user'),
    'an administrator of some stores': await server.as('admin', 'silver', 'lost'),
  };
});

function expectShort({ text }: Answer): void {
  expect(text).not.toMatch(secrets);
  expect(text).toMatch(ask);
}

test('a list of stores hides their addresses', async () => {
  const whole = (await server.admin.get('/v1/stores')).text;
  expect(whole).toContain('has no directory /elsewhere to mount; it exports /export');
  // Other tests write to the same disk meanwhile.
  const lasting = (text: string): string => text.replaceAll(/"freeBytes":"\d+"/g, '');
  expect(lasting((await (await server.as('admin')).get('/v1/stores')).text)).toBe(lasting(whole));
  for (const api of Object.values(others)) {
    const answer = await api.get('/v1/stores');
    expectShort(answer);
    expect(answer.body.items.map(({ uri }: { uri: string }) => uri)).toEqual(['nfs://…', 'nfs://…']);
    expectShort(await api.get('/v1/stores/lost'));
  }
});

test('a list of stores shows the network of a store to everybody', async () => {
  const known = new Map(kinds.map((kind) => [kind.scheme, kind]));
  const apart = parseStoreConfig('lost', 'nfs://127.0.0.1/export?network=netns:no-such-network', 'file', known);
  await server.core.stores.configure([apart], undefined, aCall());
  for (const api of [server.admin, ...Object.values(others)]) {
    const { body } = await api.get('/v1/stores');
    expect(body.items).toMatchObject([{ name: 'lost', network: 'netns:no-such-network' }]);
    expect((await api.get('/v1/stores/lost')).body.network).toBe('netns:no-such-network');
    if (api !== server.admin) expect(body.items[0].uri).toBe('nfs://…');
  }
});

test('a failed request hides details, which are in the log under its id', async () => {
  for (const who of ['a user', 'an administrator of some stores']) {
    const answer = await (others[who] as Api).post('/v1/volumes', { store: 'lost', name: 'v' });
    expectShort(answer);
    expect(answer.body).toMatchObject({
      status: 503,
      code: 'unavailable',
      reason: 'nfs-export-unknown',
      detail: 'the store is unreachable (network, server or disk failure)',
      action: `Try again in a while. If it persists, ask the administrator, who finds out why under request ${answer.body.requestId} in the server's log.`,
    });
    const logged = log.lines.find((line) => line.includes(answer.body.requestId));
    expect(logged).toContain('it exports /export');
  }
  const { body } = await server.admin.post('/v1/volumes', { store: 'lost', name: 'v' });
  expect(body.detail).toContain('it exports /export');
});

test('a check hides addresses and details', async () => {
  const api = others['a user'] as Api;
  for (const name of ['silver', 'lost']) {
    const { body, text } = await api.post(`/v1/stores/${name}/check`);
    expect(text).not.toMatch(secrets);
    expect(body.ok).toBe(name === 'silver');
  }
  expect((await api.post('/v1/stores/lost/check')).body.steps.at(-1)).toEqual({
    step: 'mount',
    ok: false,
    detail: 'this step failed',
    reason: 'nfs-export-unknown',
    action: 'Ask the administrator, who finds out why with: stowage store check lost',
  });
  expect(log.lines.some((line) => line.includes('store check failed') && line.includes('it exports /export'))).toBe(
    true,
  );
  expect((await server.admin.post('/v1/stores/silver/check')).text).toContain('127.0.0.1');
});

test('a check of a stopped server says that it is not a permission problem', async () => {
  await own.server.close();
  const { steps } = (await (others['a user'] as Api).post('/v1/stores/silver/check')).body;
  expect(steps.at(-1)).toEqual({
    step: 'connect',
    ok: false,
    reason: 'nfs-refused',
    detail: 'the server of the store does not answer: a network or server failure, not missing permissions',
    action: 'Ask the administrator, who finds out why with: stowage store check silver',
  });
});

const permission = 'a permission problem, not a network problem';

/** The answers that each caller gets. */
async function expectDenied(name: string, reason: string, about: string): Promise<void> {
  const whole = (await server.admin.get(`/v1/stores/${name}`)).body.problem;
  expect(whole.message).toMatch(secrets);
  const grant = 'Ask the administrator to grant Stowage access; the reason is found';
  for (const api of Object.values(others)) {
    const shown = await api.get(`/v1/stores/${name}`);
    expect(shown.text).not.toMatch(secrets);
    expect(shown.body.problem).toEqual({
      message: about.replace('NAME', 'the store'),
      action: `${grant} with: stowage store show ${name}`,
    });
  }
  const api = others['a user'] as Api;
  const made = await api.post('/v1/volumes', { store: name, name: 'v' });
  expect(made.text).not.toMatch(secrets);
  expect(made.body).toMatchObject({
    status: 503,
    code: 'unavailable',
    reason,
    title: 'Not available at the moment',
    detail: about.replace('NAME', `store '${name}'`),
    action: `${grant} under request ${made.body.requestId} in the server's log.`,
  });
  const looked = await api.get(`/v1/volumes/${name}..v`);
  expect(looked.body).toMatchObject({
    detail: `volume '${name}/v' cannot be looked up: ${about.replace('NAME', `store '${name}'`)}`,
    action: `${grant} with: stowage store check ${name}`,
  });
  const { steps } = (await api.post(`/v1/stores/${name}/check`)).body;
  expect(steps.at(-1)).toMatchObject({ ok: false, detail: about.replace('NAME', 'the store') });
}

test('a store whose server denies this host is reported as a permission problem, with a hint to ask the administrator', async () => {
  await own.restart({ networks: ['192.0.2.0/24'] });
  const { port } = own.server;
  const known = new Map(kinds.map((kind) => [kind.scheme, kind]));
  const uri = `nfs://127.0.0.1:${port}/export?mountport=${port}&timeout=1s&retries=0`;
  await server.core.stores.configure([parseStoreConfig('lost', uri, 'file', known)], undefined, aCall());
  await vi.waitFor(() => expect(server.core.stores.view('lost').problem?.reason).toBe('nfs-hangs-up'), 30_000);
  const about = `the server of NAME ends every connection from this host at once: most likely it does not allow this host, which is ${permission}`;
  await expectDenied('lost', 'nfs-hangs-up', about);
});

test('an open store whose server begins to deny this host is a permission problem on every route, for every caller', async () => {
  const { port } = own.server;
  const known = new Map(kinds.map((kind) => [kind.scheme, kind]));
  const uri = `nfs://127.0.0.1:${port}/export?mountport=${port}&timeout=1s`;
  await server.core.stores.configure([parseStoreConfig('lost', uri, 'file', known)], undefined, aCall());
  expect((await server.admin.post('/v1/volumes', { store: 'lost', name: 'v' })).status).toBe(201);
  await own.restart({ networks: ['192.0.2.0/24'] });
  const about = `the server of NAME ends every connection from this host at once: most likely it does not allow this host, which is ${permission}`;
  const grant = 'Ask the administrator to grant Stowage access; the reason is found';
  const user = others['a user'] as Api;
  // The server has not been pinged yet.
  const requests = [
    () => user.post('/v1/volumes', { store: 'lost', name: 'new' }),
    () => user.get('/v1/volumes/lost..v'),
    () => user.delete('/v1/volumes/lost..v'),
    () => user.get('/v1/trash?store=lost'),
  ];
  for (const request of requests) {
    const { body, text } = await request();
    expect(text).not.toMatch(secrets);
    expect(body).toMatchObject({
      status: 503,
      code: 'unavailable',
      reason: 'nfs-hangs-up',
      detail: about.replace('NAME', 'the store'),
      action: `${grant} under request ${body.requestId} in the server's log.`,
    });
  }
  const [ended] = (await user.get('/v1/operations')).body.items;
  expect(ended).toMatchObject({ state: 'failed', error: { message: about.replace('NAME', 'the store') } });
  const { detail, action } = (await server.admin.post('/v1/volumes', { store: 'lost', name: 'new' })).body;
  expect(detail).toContain('127.0.0.1 closes every connection from this host at once');
  expect(action).toContain("Have the server's administrator allow this host's address");
  const unknown = (await user.get('/v1/volumes/lost..none')).body;
  expect(unknown).toMatchObject({
    status: 503,
    action: `${grant} with: stowage store check lost`,
    detail: `volume 'lost/none' cannot be looked up: ${about.replace('NAME', "store 'lost'")}`,
  });

  await own.restart();
  await vi.waitFor(async () => expect((await user.get('/v1/volumes/lost..v')).status).toBe(200), 20_000);
});

test.skipIf(lacks('root', 'ganesha'))(
  'a store whose export denies this host is reported as a permission problem, with a hint to ask the administrator',
  async () => {
    const { signal } = new AbortController();
    await using nfs = await startGanesha({
      exports: [{ path: own.directory, tag: 'denied', onlyFor: '192.0.2.1' }],
      signal,
    });
    const known = new Map(kinds.map((kind) => [kind.scheme, kind]));
    const uri = `nfs://${nfs.host}:${nfs.nfsPort}${own.directory}?mountport=${nfs.mountPort}&timeout=5s&retries=0`;
    await server.core.stores.configure([parseStoreConfig('lost', uri, 'file', known)], undefined, aCall());
    await vi.waitFor(() => expect(server.core.stores.view('lost').problem?.reason).toBe('nfs-export-withheld'), 30_000);
    const about = `the server of NAME does not export the store's directory to this host: most likely it does not allow this host, which is ${permission}`;
    await expectDenied('lost', 'nfs-export-withheld', about);
  },
);

test('a failed operation and its event hide details', async () => {
  const viewer = others['a viewer of some stores'] as Api;
  using stream = await viewer.follow();
  await stream.until('hello');
  await own.server.close();
  const { body } = await server.admin.post('/v1/volumes', { store: 'silver', name: 'v' });
  expect(body.detail).toMatch(secrets);
  const { data } = await stream.until('operation.ended');
  expect(JSON.stringify(data)).not.toMatch(secrets);
  expect(JSON.stringify(data)).toMatch(ask);
  const page = await viewer.get('/v1/operations');
  expectShort(page);
  expectShort(await viewer.get(`/v1/operations/${page.body.items[0].id}`));
  expect((await server.admin.get('/v1/operations')).text).toMatch(secrets);
});

test('a conflict with existing data hides their path', async () => {
  await mkdir(join(own.directory, 'old'));
  const wanted = { store: 'silver', name: 'old' };
  const answer = await (others['a user'] as Api).post('/v1/volumes', wanted);
  expect(answer.body).toMatchObject({ status: 409, reason: 'directory-unrecorded' });
  expectShort(answer);
  expect((await server.admin.post('/v1/volumes', wanted)).body.detail).toMatch(secrets);
  expectShort(await (others['a viewer of some stores'] as Api).get('/v1/operations'));
});

test('a volume whose data were replaced, and the orphans of its store, hide paths', async () => {
  for (const name of ['spoilt', 'emptied']) await server.admin.post('/v1/volumes', { store: 'silver', name });
  for (const name of ['spoilt', 'emptied']) await rm(join(own.directory, name), { recursive: true });
  await writeFile(join(own.directory, 'spoilt'), '');
  await writeFile(join(own.directory, 'torn.meta'), '{');
  const admin = await server.admin.get('/v1/volumes/silver..spoilt/usage');
  expect(admin.body).toMatchObject({ reason: 'volume-data-unusable', detail: expect.stringMatching(secrets) });
  const found = await server.admin.get('/v1/stores/silver/orphans');
  expect(found.text).toMatch(secrets);
  for (const api of Object.values(others)) {
    expectShort(await api.get('/v1/volumes/silver..spoilt/usage'));
    const { text, body } = await api.get('/v1/stores/silver/orphans');
    expect(text).not.toMatch(secrets);
    expect(body.items.map(({ kind }: { kind: string }) => kind)).toEqual(
      found.body.items.map(({ kind }: { kind: string }) => kind),
    );
    expect(body.items).toContainEqual({
      store: 'silver',
      kind: 'missing-data',
      name: 'emptied',
      detail: 'the volume is recorded, but its data is missing',
      action: 'Ask the administrator, who can see the details with: stowage store orphans silver',
    });
  }
});

test('adoption hides why data were skipped, also in the operation of another caller', async () => {
  const scoped: Principal = { id: 'x', role: 'admin', stores: ['silver'] };
  const everywhere: Principal = { id: 'y', role: 'admin', stores: [] };
  const skipped = [{ name: 'a', reason: '127.0.0.1:/export/a cannot become a volume: it is a symbolic link' }];
  const view = viewOf({ kind: 'store.adopt' });
  const shown = (principal: Principal) =>
    JSON.stringify(operationJson(view, { adopted: [], skipped }, principal).result);
  expect(shown(everywhere)).toMatch(secrets);
  expect(shown(scoped)).not.toMatch(secrets);
  expect(shown(scoped)).toContain('"a"');
});

test.each(['source-port-taken', 'internal', 'folder-occupied', 'format-newer', 'one-that-is-new'])(
  'the error of an operation that failed with %s is redacted',
  (reason) => {
    const error = { code: 'internal', reason, message: 'at 127.0.0.1:/export', action: 'Look at /export.' } as const;
    const shown = (role: Principal['role'], ...stores: string[]) =>
      JSON.stringify(operationJson(viewOf({ error }), undefined, { id: 'x', role, stores }).error);
    expect(shown('admin')).toMatch(secrets);
    for (const short of [shown('admin', 'silver'), shown('user'), shown('viewer')]) {
      expect(short).not.toMatch(secrets);
      expect(short).toMatch(ask);
    }
  },
);

function viewOf(about: Partial<Operation>): OperationView {
  const operation: Operation = {
    id: 'op' as OperationId,
    kind: 'volume.mount',
    store: 'silver',
    subject: 'silver/v',
    state: 'failed',
    params: {},
    startedAt: 0,
    endedAt: 1,
    error: undefined,
    ...about,
  };
  return { operation, progress: undefined };
}
