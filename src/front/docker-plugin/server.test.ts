import { mkdtempSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { PluginName } from '#core/containers.ts';
import type { Volume } from '#core/model.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { type Answer, aCall, collectingLog, createApi, startServer, type TestServer } from '#testing/server.ts';
import { createPluginServer, type PluginOptions, type PluginServer } from './server.ts';

const clock = systemClock();
const type = 'application/vnd.docker.plugins.v1.2+json';

let server: TestServer;
let nfs: GatedKind;
let local: GatedKind;
let log: ReturnType<typeof collectingLog>;

/** Both scopes: `local` is this machine's and the default, `silver` is shared. */
beforeEach(async () => {
  const parent = mkdtempSync(join(tmpdir(), 'stowage-plugin-'));
  onTestFinished(() => rmSync(parent, { recursive: true, force: true }));
  nfs = gated(createNfsStoreKind(clock, connectToDisk(parent)));
  local = gated(createLocalStoreKind());
  log = collectingLog();
  server = await startServer({ listen: 'none', kinds: [local, nfs] });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const silver = mkdtempSync(join(parent, 'silver-'));
  await server.engine.stores.add('silver', `nfs://server${silver}`, aCall());
});

async function listen(plugin: PluginName, more: Partial<PluginOptions> = {}): Promise<[PluginServer, string]> {
  const at = join(server.folder, plugin);
  const { engine } = server;
  const storeOptions = new Set(['squash', 'layout']);
  const served = createPluginServer({ engine, plugin, storeOptions, clock, log, ...more });
  await new Promise<void>((resolve) => served.server.listen(at, resolve));
  onTestFinished(() => served.close(0));
  return [served, at];
}

interface Plugin {
  /** What it answers, with the status where that is not 200. */
  (method: string, message?: object): Promise<Record<string, unknown>>;
  raw(method: string, path: string, raw?: string | Buffer, headers?: Record<string, string>): Promise<Answer>;
  readonly at: string;
  readonly served: PluginServer;
}

async function plugin(name: PluginName = 'stowage-local', more: Partial<PluginOptions> = {}): Promise<Plugin> {
  const [served, at] = await listen(name, more);
  const api = createApi({ socketPath: at });
  const call = async (method: string, message?: object): Promise<Record<string, unknown>> => {
    const raw = message === undefined ? '' : JSON.stringify(message);
    const { status, text, headers } = await api.call('POST', `/${method}`, { raw });
    expect(headers['content-type']).toBe(type);
    const body = JSON.parse(text);
    return status === 200 ? body : { status, ...body };
  };
  const raw: Plugin['raw'] = (method, path, content, headers = {}) =>
    api.call(method, path, { headers, ...(content === undefined ? {} : { raw: content }) });
  return Object.assign(call, { raw, at, served });
}

const done = { Err: '' };
const make = (store: string, name: string, more = {}): Promise<Volume> =>
  server.engine.volumes.create({ store, name, bytes: undefined, access: undefined, labels: {}, ...more }, aCall());

describe('a plugin', () => {
  test('says what it is, and its scope is that of its name', async () => {
    const [shared, own] = [await plugin('stowage'), await plugin('stowage-local')];
    expect(await shared('Plugin.Activate')).toEqual({ Implements: ['VolumeDriver'], Err: '' });
    expect(await shared('VolumeDriver.Capabilities', {})).toMatchObject({ Capabilities: { Scope: 'global' } });
    expect(await own('VolumeDriver.Capabilities', {})).toMatchObject({ Capabilities: { Scope: 'local' } });
  });

  test('makes a volume by the name of a store, and shows it', async () => {
    const call = await plugin();
    const Opts = { store: 'local', size: '1.5G', 'label.team': 'blue' };
    expect(await call('VolumeDriver.Create', { Name: 'photos', Opts, Unknown: [1] })).toEqual(done);
    const get = async () =>
      (await call('VolumeDriver.Get', { Name: 'photos' })) as { Volume: { readonly [key: string]: unknown } };
    // What it holds is told once it is known.
    await expect.poll(async () => (await get()).Volume['Status']).toHaveProperty('used');
    const { Volume } = await get();
    const volume = server.engine.records.volumes.named('photos' as Volume['name'])[0];
    expect(Volume).toEqual({
      Name: 'photos',
      Mountpoint: '',
      CreatedAt: new Date(volume?.createdAt ?? 0).toISOString(),
      Status: {
        ...{ store: 'local', volume: 'photos', id: volume?.id, size: '1.5GiB', used: expect.any(String) },
        ...{ enforce: false, health: 'ok', client: 'bind', network: 'none' },
        ...{ access: 'filesystem', labels: { team: 'blue' } },
      },
    });
    expect(await call('VolumeDriver.List', {})).toEqual({
      Volumes: [{ Name: 'photos', Mountpoint: '', CreatedAt: Volume['CreatedAt'] }],
      Err: '',
    });
    expect(await call('VolumeDriver.Path', { Name: 'photos' })).toEqual({ Mountpoint: '', Err: '' });
  });

  test('makes it in the only store of its scope when none is named, and takes no options for none', async () => {
    const call = await plugin('stowage');
    expect(await call('VolumeDriver.Create', { Name: 'a'.repeat(64), Opts: null })).toEqual(done);
    expect(await call('VolumeDriver.Create', { Name: 'silver..b' })).toEqual(done);
    expect(await call('VolumeDriver.Get', { Name: 'b' })).toMatchObject({
      Volume: { Status: { store: 'silver', client: 'built-in data path', network: 'host' } },
    });
    expect(await (await plugin())('VolumeDriver.List', {})).toEqual({ Volumes: [], Err: '' });
  });

  test('removes it, and what is not there is removed already', async () => {
    const call = await plugin();
    await call('VolumeDriver.Create', { Name: 'a' });
    expect(await call('VolumeDriver.Remove', { Name: 'a' })).toEqual(done);
    expect(server.engine.engineNames.known('stowage-local', 'a')).toBeUndefined();
    expect(await call('VolumeDriver.Remove', { Name: 'a' })).toEqual(done);
    expect(await call('VolumeDriver.Get', { Name: 'a' })).toEqual({
      status: 404,
      Err: "there is no volume 'a'. See what there is: stowage volume list",
    });
    // The same name again is another volume.
    expect(await call('VolumeDriver.Create', { Name: 'a' })).toEqual(done);
  });

  test('of the other scope sends people to the right driver', async () => {
    await make('local', 'mine');
    const call = await plugin('stowage');
    for (const [method, message] of [
      ['VolumeDriver.Get', { Name: 'mine' }],
      ['VolumeDriver.Mount', { Name: 'mine', ID: '1' }],
      ['VolumeDriver.Remove', { Name: 'mine' }],
      ['VolumeDriver.Create', { Name: 'new', Opts: { store: 'local' } }],
    ] as const)
      expect(await call(method, message)).toMatchObject({
        status: 400,
        Err: expect.stringContaining('-d stowage-local'),
      });
    // A name is taken in its own scope only.
    expect(await call('VolumeDriver.Create', { Name: 'mine' })).toEqual(done);
  });
});

describe('a volume that is there already', () => {
  test('is success where it is as asked for, whoever made it and whatever has become of it', async () => {
    const call = await plugin();
    const Opts = { size: '1M', 'label.a': 'b' };
    await call('VolumeDriver.Create', { Name: 'twice', Opts });
    expect(await call('VolumeDriver.Create', { Name: 'twice', Opts })).toEqual(done);
    await server.engine.volumes.label('twice', { c: 'd' }, undefined, aCall());
    expect(await call('VolumeDriver.Create', { Name: 'twice', Opts })).toEqual(done);
    await make('local', 'other', { bytes: 1n << 20n });
    expect(await call('VolumeDriver.Create', { Name: 'other', Opts: { size: '1M', store: 'local' } })).toEqual(done);
    expect(server.engine.records.volumes.totals('local' as Volume['store']).volumes).toBe(2);
  });

  test('and differs is refused, with what differs', async () => {
    const call = await plugin();
    const { id } = await make('local', 'a', { labels: { x: 'y' } });
    const Opts = { size: '2M', 'label.x': 'z', 'label.new': '1' };
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts })).toEqual({
      status: 409,
      Err: "there is a volume 'a' already, and it has no size, its label 'x' is 'y', its label 'new' is not set. Choose another name, or leave out what differs to use it as it is.",
    });
    await server.engine.volumes.expand(id, 1n << 30n, undefined, aCall());
    // Known by now under that name.
    await call('VolumeDriver.Get', { Name: 'a' });
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts: { size: '2M' } })).toMatchObject({
      Err: expect.stringContaining('its size is 1GiB'),
    });
  });

  test('in another store than the one named here stays what the name means', async () => {
    const folder = mkdtempSync(join(server.folder, 'gold-'));
    await server.engine.stores.add('gold', `local://${folder}`, aCall());
    await make('gold', 'a');
    const call = await plugin();
    await call('VolumeDriver.Get', { Name: 'a' });
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts: { store: 'local' } })).toMatchObject({
      status: 409,
      Err: expect.stringContaining("it is on store 'gold'"),
    });
    // A name that means nothing yet means what was made under it, although the default store has one of that name.
    await make('local', 'b');
    expect(await call('VolumeDriver.Create', { Name: 'b', Opts: { store: 'gold' } })).toEqual(done);
    expect(await call('VolumeDriver.Get', { Name: 'b' })).toMatchObject({ Volume: { Status: { store: 'gold' } } });
  });
});

describe('options', () => {
  test.each([
    [{ size: 'much' }, "'much' is not a size. Write a size such as"],
    [{ size: '' }, "'' is not a size."],
    [{ enforce: 'perhaps' }, "'perhaps' is not a value for enforce."],
    [{ enforce: 'true', size: '1M' }, "store 'local' cannot hold a volume to its size."],
    [{ store: 'nowhere' }, "there is no store 'nowhere'."],
    [{ colour: 'red' }, "'colour' is not an option. Allowed are: -o store=NAME, -o size=SIZE,"],
    [{ __proto__x: '' }, 'is not an option.'],
    [{ constructor: '' }, "'constructor' is not an option."],
    [{ 'label.': 'x' }, "'' cannot be a label."],
    [{ 'label.stowage.dev/x': 'x' }, 'is reserved'],
  ])('%j is refused', async (Opts, said) => {
    const call = await plugin();
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts })).toMatchObject({
      Err: expect.stringContaining(said),
    });
    expect(await call('VolumeDriver.List', {})).toMatchObject({ Volumes: [] });
  });

  test.each(['device', 'o', 'type', 'addr', 'password', 'share', 'mountOptions', 'squash', 'layout', 'onDelete'])(
    '-o %s is the administrator’s, and its value is not repeated',
    async (key) => {
      const call = await plugin();
      const { status, Err } = await call('VolumeDriver.Create', { Name: 'a', Opts: { [key]: 'hunter2' } });
      expect(status).toBe(403);
      expect(Err).toBe(
        `'${key}' is said by the administrator, once, on the store. Name a store instead of how to reach it: -o store=NAME. Allowed are: -o store=NAME, -o size=SIZE, -o enforce=true, -o label.KEY=VALUE`,
      );
      expect(log.lines.join()).not.toContain('hunter2');
    },
  );

  test.each([
    ['', true],
    ['1', true],
    ['true', true],
    ['false', false],
    ['0', false],
  ])('-o enforce=%s', async (enforce, is) => {
    const call = await plugin('stowage');
    expect(await call('VolumeDriver.Create', { Name: 'a', Opts: { enforce, size: '1M' } })).toEqual(done);
    expect(await call('VolumeDriver.Get', { Name: 'a' })).toMatchObject({ Volume: { Status: { enforce: is } } });
  });
});

describe('what engines should not send', () => {
  const refused = async (answer: Promise<Answer>): Promise<[number, string]> => {
    const { status, text, headers } = await answer;
    expect(headers['content-type']).toBe(type);
    const { Err, ...rest } = JSON.parse(text);
    expect(rest).toEqual({});
    expect(Err).toMatch(/^[^\n]+\. [^\n]+$/);
    return [status, Err];
  };

  test.each([
    ['Get', ''],
    ['Get', '{}'],
    ['Get', '{"Name":""}'],
    ['Get', '{"Name":7}'],
    ['Get', '{"Name":null}'],
    ['Get', '{"name":"a"}'],
    ['Get', '{"__proto__":{"Name":"a"}}'],
    ['Get', '{"Name":"a"'],
    ['Get', '[]'],
    ['Get', 'null'],
    ['Get', '"a"'],
    ['Get', '{"Name":"../../etc"}'],
    ['Get', '{"Name":"a\\u0000b"}'],
    ['Create', '{"Name":"a","Opts":[]}'],
    ['Create', '{"Name":"a","Opts":"size=1"}'],
    ['Create', '{"Name":"a","Opts":{"size":1}}'],
    ['Create', '{"Name":"a/b"}'],
    ['Create', '{"Name":"a\\nb"}'],
    ['Mount', '{"Name":"a"}'],
    ['Mount', '{"ID":"a"}'],
    ['Unmount', '{"Name":"a"}'],
    ['Remove', '{}'],
    ['Path', '{}'],
  ])('%s %s', async (method, raw) => {
    const call = await plugin();
    const [status] = await refused(call.raw('POST', `/VolumeDriver.${method}`, raw));
    expect(status === 400 || status === 404).toBe(true);
    expect(await call('VolumeDriver.List', {})).toMatchObject({ Volumes: [] });
  });

  test('names that are too long, and JSON that is nested as deep as it can be', async () => {
    const call = await plugin();
    const deep = '['.repeat(30_000) + ']'.repeat(30_000);
    for (const raw of [`{"Name":"${'a'.repeat(600)}"}`, deep, `{"Opts":${deep}}`])
      expect((await refused(call.raw('POST', '/VolumeDriver.Create', raw)))[0]).toBe(400);
    expect((await call.raw('POST', '/VolumeDriver.Create', `{"Name":"a","Ignored":${deep}}`)).status).toBe(200);
  });

  test('bytes that are no text, other verbs, paths and types', async () => {
    const call = await plugin();
    const get = '/VolumeDriver.Get';
    expect((await refused(call.raw('POST', get, Buffer.from([0xff, 0, 1, 0xfe]))))[0]).toBe(400);
    for (const verb of ['GET', 'PUT', 'DELETE', 'OPTIONS', 'PATCH']) {
      const answer = call.raw(verb, get);
      expect((await refused(answer))[0]).toBe(405);
      expect((await answer).headers.allow).toBe('POST');
    }
    for (const path of ['/', '/VolumeDriver.Snapshot', '/v1/volumes', '/VolumeDriver.get', '/constructor', '/%'])
      expect((await refused(call.raw('POST', path, '{}')))[0]).toBe(404);
    const typed = (value: string) => call.raw('POST', '/VolumeDriver.List', '{}', { 'content-type': value });
    for (const value of ['text/plain', 'application/x-www-form-urlencoded', 'application/jsonp'])
      expect((await refused(typed(value)))[0]).toBe(415);
    for (const value of ['application/json', 'application/json; charset=utf-8', type, type.replace('1.2', '1.1'), ''])
      expect((await typed(value)).status).toBe(200);
    expect((await refused(call.raw('POST', get, '{}', { expect: 'miracles' })))[0]).toBe(417);
    expect((await refused(call.raw('POST', get, '{}', { x: 'y'.repeat(20_000) })))[0]).toBe(431);
  });

  test('a body that is too large, announced or not, is not read to its end', async () => {
    const call = await plugin();
    const body = JSON.stringify({ Name: 'a', Padding: 'x'.repeat(64 * 1024) });
    expect((await refused(call.raw('POST', '/VolumeDriver.Get', body)))[0]).toBe(413);
    const chunk = `10000\r\n${'x'.repeat(65_536)}\r\n`;
    const head = 'POST /VolumeDriver.Get HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n';
    expect(await said(call.at, head + chunk + chunk)).toMatch(/^HTTP\/1\.1 413 [\s\S]*"Err":"the request is too large/);
  });

  test('what never becomes a request, or none in time, is answered and cut off', async () => {
    const limits = { headersTimeout: 100, requestTimeout: 200, connectionsCheckingInterval: 20 };
    const call = await plugin('stowage-local', { limits });
    expect(await said(call.at, 'GARBAGE\r\n\r\n')).toMatch(/^HTTP\/1\.1 400 [\s\S]*"Err":"the request is malformed/);
    expect(await said(call.at, 'POST /VolumeDriver.Get HTTP/1.1\r\nx: ')).toMatch(/^HTTP\/1\.1 408 /);
    const half = 'POST /VolumeDriver.Get HTTP/1.1\r\ncontent-length: 50\r\n\r\n{"Name"';
    expect(await said(call.at, half)).toMatch(/^HTTP\/1\.1 408 /);
    expect(await said(call.at, '')).toMatch(/^(HTTP\/1\.1 408 |$)/);
    // One that hangs up in the middle.
    const socket = connect(call.at);
    socket.resume().end(half);
    await new Promise((resolve) => socket.once('close', resolve));
    expect(await call('VolumeDriver.List', {})).toMatchObject(done);
    expect(log.lines.filter((line) => line.startsWith('error'))).toEqual([]);
  });

  test('more calls at once than there can be are told so, and the rest is answered', async () => {
    const call = await plugin('stowage-local', { limits: { mostCalls: 20 } });
    const gate = local.close('create');
    const names = Array.from({ length: 20 }, (_, index) => `v${index}`);
    const made = names.map((Name) => call('VolumeDriver.Create', { Name }));
    await vi.waitFor(() => expect(gate.waiting()).toBe(20));
    expect(await call('VolumeDriver.Get', { Name: 'v1' })).toEqual({
      status: 409,
      Err: 'too many calls are under way. Try again in a moment.',
    });
    gate.open();
    expect(await Promise.all(made)).toEqual(names.map(() => done));
    expect(await call('VolumeDriver.Get', { Name: 'v1' })).toMatchObject(done);
  });

  test('hundreds of calls at once are all answered', async () => {
    await make('local', 'a');
    const call = await plugin();
    const calls = await Promise.all(Array.from({ length: 500 }, () => call('VolumeDriver.Get', { Name: 'a' })));
    expect(calls.every(({ Err }) => Err === '')).toBe(true);
  });
});

/** All that is answered to these bytes. */
function said(at: string, bytes: string): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  const socket = connect(at);
  let text = '';
  socket.on('data', (data) => {
    text += String(data);
  });
  socket.on('error', () => undefined);
  socket.once('close', () => resolve(text));
  socket.write(bytes);
  return promise;
}

describe('a store that does not answer', () => {
  test('is told within seconds by Create, with whose matter it is', async () => {
    const call = await plugin('stowage');
    const gate = nfs.close('ping', { deaf: true });
    onTestFinished(() => gate.open());
    expect(await call('VolumeDriver.Create', { Name: 'a' })).toEqual({
      status: 503,
      Err: "the server of store 'silver' does not answer: it is the network or the server, not a permission. Try again when it does. What holds it up is for the administrator to find out: stowage store check silver",
    });
  });

  test('does not make its volumes look gone: Docker would advise to remove them by force', async () => {
    const call = await plugin('stowage');
    await call('VolumeDriver.Create', { Name: 'a' });
    const gates = [nfs.close('ping', { deaf: true }), nfs.close('get', { deaf: true })];
    onTestFinished(() => gates.forEach((gate) => void gate.open()));
    // These ask no store at all: a container must be able to end.
    expect(await call('VolumeDriver.Path', { Name: 'a' })).toMatchObject({ Mountpoint: '' });
    expect(await call('VolumeDriver.Unmount', { Name: 'a', ID: '1' })).toEqual(done);
    expect(gates.map((gate) => gate.waiting())).toEqual([0, 0]);
    const refused = await call('VolumeDriver.Mount', { Name: 'a', ID: '1' });
    expect(refused).toMatchObject({ status: 503, Err: expect.stringContaining("store 'silver' does not answer") });
    expect(await call('VolumeDriver.Get', { Name: 'a' })).toMatchObject({
      Volume: { Name: 'a', Status: { health: "the server of store 'silver' does not answer" } },
    });
    expect(await call('VolumeDriver.List', {})).toMatchObject({ Volumes: [{ Name: 'a' }] });
  });

  test('and was never reached is told without where it is, and with who finds that out', async () => {
    const config = join(server.folder, 'two.yaml');
    await writeFile(config, 'stores: { gold: "nfs://127.0.0.1/x?port=1&mountport=1&timeout=500ms&retries=0" }');
    await using other = await startServer({ listen: 'none', config });
    const call = await plugin('stowage', { engine: other.engine });
    const { status, Err } = await call('VolumeDriver.Create', { Name: 'a' });
    expect(status).toBe(503);
    expect(Err).toMatch(
      /^the store cannot be used at the moment: it is the network, .*ask the administrator, who finds out why/,
    );
    expect(Err).not.toContain('127.0.0.1');
  });
});

test('how much a volume holds is told as far as it is known, and nobody waits for it', async () => {
  const fake = createFakeClock();
  const call = await plugin('stowage-local', { clock: fake });
  const get = async (): Promise<unknown> => {
    const { Volume } = (await call('VolumeDriver.Get', { Name: 'a' })) as { Volume: { Status: { used?: string } } };
    return Volume.Status.used;
  };
  await call('VolumeDriver.Create', { Name: 'a' });
  const first = local.close('usage');
  const unknown = get();
  await first.reached;
  fake.advance(10);
  expect(await unknown).toBeUndefined();
  first.open();
  await vi.waitFor(async () => expect(await get()).toBe('4KiB'));
  // Looked at again after a while: until that is done, it is what it was.
  const second = local.close('usage');
  fake.advance(30_001);
  const before = get();
  await second.reached;
  fake.advance(10);
  expect(await before).toBe('4KiB');
  // What takes long is not tried again with the next container that starts.
  fake.advance(500);
  await vi.waitFor(async () => expect(await get()).toBeUndefined());
  expect(second.waiting()).toBe(1);
  second.open();
  fake.advance(600_001);
  expect(await get()).toBe('4KiB');
});

test('a fault of ours is told without what is inside, and logged', async () => {
  const call = await plugin();
  vi.spyOn(server.engine.engineNames, 'list').mockRejectedValue(new TypeError("can't read secrets of undefined"));
  expect(await call('VolumeDriver.List', {})).toEqual({
    status: 500,
    Err: "Stowage failed to do this. Look into the server's log, and report it.",
  });
  expect(log.lines.filter((line) => line.startsWith('error a call of a container engine failed'))).toHaveLength(1);
});

test('names unmounted that were never mounted are success, and a block volume is not mounted', async () => {
  const folder = mkdtempSync(join(server.folder, 'images-'));
  await server.engine.stores.add('images', `local://${folder}?layout=image`, aCall());
  await make('images', 'raw', { access: 'block', bytes: 1n << 24n });
  const call = await plugin();
  expect(await call('VolumeDriver.Unmount', { Name: 'never', ID: '1' })).toEqual(done);
  expect(await call('VolumeDriver.Mount', { Name: 'raw', ID: '1' })).toMatchObject({
    status: 422,
    Err: expect.stringContaining('is a raw block device'),
  });
  expect(await call('VolumeDriver.Get', { Name: 'raw' })).toMatchObject({
    Volume: { Status: { access: 'block', client: 'loop', enforce: true } },
  });
});

describe('a plugin that stops', () => {
  test.each([true, false])('waits for what reads, but not for long (it is answered: %s)', async (isAnswered) => {
    const call = await plugin('stowage');
    await call('VolumeDriver.Create', { Name: 'there' });
    const reading = nfs.close('get');
    onTestFinished(() => reading.open());
    const got = call('VolumeDriver.Get', { Name: 'there' });
    await reading.reached;
    const since = performance.now();
    const closed = call.served.close(30_000);
    if (isAnswered) reading.open();
    expect(await got).toMatchObject(isAnswered ? { Volume: { Name: 'there' }, Err: '' } : { status: 503 });
    await closed;
    expect(performance.now() - since).toBeLessThan(20_000);
  });

  test('waits for what changes something, and takes nothing new', async () => {
    const call = await plugin();
    const changing = local.close('create');
    const made = call('VolumeDriver.Create', { Name: 'a' });
    await changing.reached;
    const closed = call.served.close(10_000);
    await expect(call('VolumeDriver.List', {})).rejects.toMatchObject({ code: expect.stringMatching(/ENOENT|ECONN/) });
    changing.open();
    expect(await made).toEqual(done);
    await closed;
  });

  test('answers on connections that were open before, and only what changes something with a refusal', async () => {
    const call = await plugin();
    const changing = local.close('create');
    const made = call('VolumeDriver.Create', { Name: 'a' });
    await changing.reached;
    const begin = async (method: string) => {
      const { promise: open, resolve } = Promise.withResolvers<void>();
      const head = `POST /VolumeDriver.${method} HTTP/1.1\r\ncontent-length: 2\r\n`;
      const socket = connect(call.at, () => socket.write(head, () => resolve()));
      let text = '';
      socket.on('data', (data) => {
        text += String(data);
      });
      const ended = new Promise((resolve) => socket.once('close', resolve));
      await open;
      return async () => {
        socket.write('\r\n{}');
        await ended;
        return text;
      };
    };
    const [list, create] = [await begin('List'), await begin('Create')];
    await vi.waitFor(async () => expect(await connections(call.served)).toBe(3));
    const closed = call.served.close(10_000);
    // Docker takes a refusal of what it reads for an answer.
    expect(await list()).toMatch(/^HTTP\/1\.1 200 [\s\S]*connection: close[\s\S]*"Volumes":\[/i);
    expect(await create()).toMatch(/^HTTP\/1\.1 503 [\s\S]*"Err":"Stowage is stopping\. Try again when it runs\."/);
    changing.open();
    expect(await made).toEqual(done);
    await closed;
  });

  test('ends calls that take longer than its grace', async () => {
    const call = await plugin();
    const changing = local.close('create');
    const made = call('VolumeDriver.Create', { Name: 'a' });
    await changing.reached;
    await call.served.close(0);
    expect(await made).toMatchObject({ status: 503, Err: expect.stringContaining('Stowage is stopping') });
  });
});

const connections = ({ server: http }: PluginServer): Promise<number> =>
  new Promise((resolve) => http.getConnections((_error, count) => resolve(count)));
