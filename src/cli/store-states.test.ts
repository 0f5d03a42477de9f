import { expect, test } from 'vitest';
import { run, scriptedServer, volume } from './scripted-server.ts';

const store = {
  name: 'silver',
  kind: 'nfs',
  uri: 'nfs://filer/export',
  default: false,
  origin: 'api',
  pending: null,
  state: 'not-answering',
  network: null,
  readOnly: false,
  enforcesCapacity: false,
  access: ['filesystem'],
  problem: { message: "the server of store 'silver' does not answer", action: 'Look at it.' },
  onDelete: 'delete',
  retention: '7d',
  maxVolumes: null,
  maxBytes: null,
  defaultSize: null,
  volumes: 2,
  bytes: '0',
  totalBytes: null,
  freeBytes: null,
};

test('a store whose server does not answer is not shown as open', async () => {
  await using server = await scriptedServer({
    'GET /v1/stores': [200, { items: [store], next: null }],
    'GET /v1/stores/silver': [200, store],
  });
  const { stdout } = await run(server, ['store', 'list']);
  expect(stdout).toMatch(/silver +- +nfs +not answering +2/);
  expect((await run(server, ['store', 'show', 'silver'])).stdout).toMatch(
    /state +not answering: the server of store 'silver' does not answer\n +action: Look at it\./,
  );
});

test('an open store that denies access is unhealthy, and show says why', async () => {
  const denying = { ...store, state: 'open', problem: { message: 'access is denied', action: 'Ask for it.' } };
  await using server = await scriptedServer({
    'GET /v1/stores': [200, { items: [denying], next: null }],
    'GET /v1/stores/silver': [200, denying],
  });
  expect((await run(server, ['store', 'list'])).stdout).toMatch(/silver +- +nfs +open, unhealthy +2/);
  expect((await run(server, ['store', 'show', 'silver'])).stdout).toMatch(
    /state +open: access is denied\n +action: Ask for it\./,
  );
});

test('a store of an older server, which does not report free space, is listed and shown', async () => {
  const { totalBytes: _total, freeBytes: _free, ...older } = store;
  await using server = await scriptedServer({
    'GET /v1/stores': [200, { items: [older], next: null }],
    'GET /v1/stores/silver': [200, older],
  });
  expect((await run(server, ['store', 'list'])).stdout).toMatch(/silver +- +nfs +not answering +2 +0B +- +delete/);
  expect((await run(server, ['store', 'show', 'silver'])).stdout).toMatch(/^free +unknown$/m);
});

test('status names the unhealthy stores', async () => {
  const status = {
    version: '1',
    instance: 'i',
    node: 'n',
    pid: 1,
    startedAt: new Date(0).toISOString(),
    ready: true,
    defaultStore: null,
    listen: [],
    state: null,
    config: null,
    stores: 2,
    volumes: 0,
    mounts: 0,
    operations: 0,
    mounting: { able: true, why: null, action: null },
    rssBytes: 1,
    storesInTrouble: ['silver'],
  };
  await using server = await scriptedServer({ 'GET /v1/status': [200, status] });
  expect((await run(server, ['status'])).stdout).toMatch(/unhealthy +silver; see: stowage store list/);
});

test('check prints the free space once', async () => {
  const step = (name: string, detail: string) => ({ step: name, ok: true, detail, action: null });
  const steps = [step('mount', 'there'), step('room', '1GiB free of 2GiB')];
  const figures = { totalBytes: '2147483648', freeBytes: '1073741824' };
  await using server = await scriptedServer({
    'POST /v1/stores/silver/check': [200, { store: 'silver', ok: true, steps, ...figures }],
  });
  expect((await run(server, ['store', 'check', 'silver'])).stdout).toBe(
    'ok       mount: there\nok       room: 1GiB free of 2GiB\n',
  );
});

test('show prints the path of a volume whose data are not under its name', async () => {
  const detail = { condition: 'ok', detail: null, path: 'red/photos', users: [], mounts: [], uses: null };
  await using server = await scriptedServer({
    'GET /v1/volumes/silver..photos': [200, volume('silver', 'photos', detail)],
  });
  expect((await run(server, ['volume', 'show', 'silver/photos'])).stdout).toMatch(
    /path +red\/photos, in the store's directory/,
  );
});
