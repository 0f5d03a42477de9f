import { mkdirSync, readdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Use, VolumeId, VolumeRef } from '#core/model.ts';
import type { Uses } from '#core/ports.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { scope } from '#testing/contracts/store.ts';
import { aCall } from '#testing/core-calls.ts';
import { expectError, refusal } from '#testing/expected-errors.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { connectScripted, refusing } from '#testing/fakes/scripted-nfs.ts';
import { exportFolder, openNfs } from '#testing/nfs-store.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { startServer } from '#testing/server.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import type { FileStore } from '../file-store/verbs.ts';
import { type Connect, createConnect } from './connect.ts';
import { createNfsStoreKind } from './kind.ts';
import { parseOptions } from './options.ts';
import { staleAfterMs } from './use-record-reader.ts';

interface ServedExport {
  readonly uri: string;
  readonly options: Readonly<Record<string, string>>;
  readonly connect: Connect;
  /** The exported folder on this machine. */
  readonly folder: string;
}

/** A day ahead of the server: no time that the store reports may come from this clock. */
const fastClock = { ...systemClock(), now: () => Date.now() + 86_400_000 };

function usesOf(store: FileStore): Uses {
  if (store.uses === undefined) throw new Error('this store has no use records');
  return store.uses;
}

async function openStore({ uri, options, connect }: ServedExport, instance = 'instance-1'): Promise<FileStore> {
  const store = await openNfs({ uri, options, instance, kind: createNfsStoreKind(fastClock, connect) });
  onTestFinished(() => store.close());
  return store;
}

const openUses = async (served: ServedExport, instance?: string): Promise<Uses> =>
  usesOf(await openStore(served, instance));

/** Creates a volume as another host. */
async function createVolume(served: ServedExport): Promise<VolumeRef> {
  const store = await openStore(served, 'maker');
  return store.create(volumeSpec('photos', { instance: 'maker' }), scope);
}

/** Makes a record older through the server, because the server may cache attributes. */
async function makeOlder(
  { uri, options, connect }: ServedExport,
  id: VolumeId,
  host: string,
  ms: number,
): Promise<void> {
  const session = await connect(parseOptions(uri, options), () => undefined, scope.signal);
  let handle = await session.mount(scope.signal);
  for (const name of ['.stowage', 'users', id, host]) ({ handle } = await session.nfs.lookup(handle, name));
  const { mtime } = await session.nfs.getattr(handle);
  await session.nfs.setattr(handle, { mtime: { seconds: mtime - Math.floor(ms / 1000), nanoseconds: 0 } });
  session.close();
}

const use = (host: string, ...names: readonly string[]): Use => ({
  host,
  node: `node of ${host}` as NodeName,
  users: names.map((name) => ({ kind: 'pod', name }) as const),
});
const recordsIn = (folder: string): string[] =>
  readdirSync(join(folder, '.stowage', 'users'), { recursive: true }).sort() as string[];

function usesContract(serve: () => Promise<ServedExport>): void {
  let served: ServedExport;
  let store: FileStore;
  let uses: Uses;
  let volume: VolumeRef;
  let id: VolumeId;
  beforeEach(async () => {
    served = await serve();
    store = await openStore(served);
    uses = usesOf(store);
    volume = await createVolume(served);
    ({ id } = volume);
  });

  test('put, list and remove are idempotent', async () => {
    const other = await openUses(served, 'instance-2');
    expect(await uses.list(id, scope)).toEqual([]);
    for (let i = 0; i < 2; i++) await uses.put(volume, use('h1', 'web-0', 'web-1'), scope);
    await other.put(volume, use('h2'), scope);
    const fresh = { writer: false, stale: false, renewedAt: expect.any(Number) };
    const expectedUses = [
      { ...use('h1', 'web-0', 'web-1'), ...fresh },
      { ...use('h2'), ...fresh },
    ];
    for (const one of [uses, other])
      expect((await one.list(id, scope)).toSorted((a, b) => (a.host < b.host ? -1 : 1))).toEqual(expectedUses);
    await uses.put(volume, use('h1', 'web-2'), scope);
    expect((await other.list(id, scope)).find(({ host }) => host === 'h1')?.users).toEqual([
      { kind: 'pod', name: 'web-2' },
    ]);
    for (let i = 0; i < 2; i++) await uses.remove(id, 'h1', scope);
    expect(await other.list(id, scope)).toEqual([{ ...use('h2'), ...fresh }]);
    await other.remove(id, 'h2', scope);
    expect(recordsIn(served.folder)).toEqual([]);
    expect(readdirSync(join(served.folder, '.stowage', 'tmp'))).toEqual([]);
  });

  test("a record is stale by the server's clock, not by ours", async () => {
    await uses.put(volume, use('h1'), scope);
    const [{ renewedAt = 0 } = {}] = await uses.list(id, scope);
    expect(Math.abs(renewedAt - Date.now())).toBeLessThan(60_000);
    await makeOlder(served, id, 'h1', staleAfterMs - 60_000);
    expect(await uses.list(id, scope)).toMatchObject([{ host: 'h1', stale: false }]);
    await makeOlder(served, id, 'h1', 61_000 + 5_000);
    expect(await uses.list(id, scope)).toMatchObject([{ host: 'h1', node: 'node of h1', stale: true }]);
    await uses.put(volume, use('h1'), scope);
    expect(await uses.list(id, scope)).toMatchObject([{ host: 'h1', stale: false }]);
  });

  test('one host at a time may write', async () => {
    const other = await openUses(served, 'instance-2');
    for (let i = 0; i < 2; i++) await uses.takeWriter(volume, 'h1', scope);
    expectError(await refusal(other.takeWriter(volume, 'h2', scope)), {
      code: 'in-use',
      reason: 'volume-written-elsewhere',
      message: /^volume 'test\/photos' is written by host h1, and only one host may write to it$/,
      action: /^Stop using it there first\. .*: stowage volume release test\/photos --host h1$/,
    });
    await other.dropWriter(id, 'h2', scope);
    // Once the host has recorded its node and users, the error names them.
    const useWithPod = use('h1', 'default/web-0');
    const users: Use['users'] = [{ kind: 'kubelet', name: 'file.stowage.dev' }, ...useWithPod.users];
    await uses.put(volume, { ...useWithPod, users: [...users, { kind: 'path', name: '/mnt/a' }] }, scope);
    expectError(await refusal(other.takeWriter(volume, 'h2', scope)), {
      code: 'in-use',
      reason: 'volume-written-elsewhere',
      message:
        /is written by host node of h1 \(pod default\/web-0, path \/mnt\/a\), and only one host may write to it$/,
      action: / --host h1$/,
    });
    expect((await refusal(other.takeWriter(volume, 'h2', scope))).toUsers?.message).toMatch(
      /is written by host node of h1 \(pod default\/web-0, a mount\), and only one host may write to it$/,
    );
    await uses.remove(id, 'h1', scope);
    await uses.takeWriter(volume, 'h1', scope);
    for (let i = 0; i < 2; i++) await uses.dropWriter(id, 'h1', scope);
    await other.takeWriter(volume, 'h2', scope);
    // The writer uses the volume even without a record of its users.
    expect(await uses.list(id, scope)).toEqual([
      { host: 'h2', node: 'h2', users: [], writer: true, stale: false, renewedAt: expect.any(Number) },
    ]);
    await other.put(volume, use('h2', 'web-0'), scope);
    await other.put(volume, use('h3'), scope);
    expect((await uses.list(id, scope)).map(({ host, writer }) => `${host} ${writer}`).sort()).toEqual([
      'h2 true',
      'h3 false',
    ]);
    await other.remove(id, 'h3', scope);
    await other.remove(id, 'h2', scope);
    expect(recordsIn(served.folder)).toEqual([]);
  });

  test('only one of many concurrent hosts becomes the writer', async () => {
    const all = await Promise.all(
      ['a', 'b', 'c', 'd'].map(async (host) => [host, await openUses(served, host)] as const),
    );
    const results = await Promise.allSettled(all.map(([host, one]) => one.takeWriter(volume, host, scope)));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const one of results) if (one.status === 'rejected') expect(one.reason).toMatchObject({ code: 'in-use' });
  });

  test('hosts that concurrently put and remove their records do not affect each other', async () => {
    const other = await openUses(served, 'instance-2');
    const putAndRemove = async (one: Uses, host: string): Promise<void> => {
      for (let i = 0; i < 25; i++) {
        await one.put(volume, use(host), scope);
        await one.remove(id, host, scope);
      }
    };
    await Promise.all([putAndRemove(uses, 'h1'), putAndRemove(other, 'h2'), putAndRemove(other, 'h3')]);
    expect(recordsIn(served.folder)).toEqual([]);
  });

  test('a host id that is a path is refused', async () => {
    for (const host of ['..', '../x', 'a/b', '.writer', '', 'x'.repeat(129), 'a\nb']) {
      expect(await refusal(uses.put(volume, use(host), scope)), host).toMatchObject({ reason: 'host-id-invalid' });
      expect(await refusal(uses.takeWriter(volume, host, scope)), host).toMatchObject({ reason: 'host-id-invalid' });
    }
    expect(recordsIn(served.folder)).toEqual([]);
  });
}

describe('on the local file system', () => {
  async function serve(): Promise<ServedExport> {
    const folder = await exportFolder();
    onTestFinished(() => rm(folder, { recursive: true, force: true }));
    return { folder, uri: 'nfs://nowhere/export', options: {}, connect: connectToDisk(folder) };
  }
  usesContract(serve);

  const recordOf = ({ folder }: ServedExport, id: VolumeId, host: string): string =>
    join(folder, '.stowage', 'users', id, host);

  test.each([
    ['is empty', ''],
    ['is truncated', '{"version":1,"host":"h1","no'],
    ['is something else', '[]'],
    ['lacks a field', '{"version":1,"host":"h1"}'],
    ['is too long', `"${'x'.repeat(70_000)}"`],
  ])('a record that %s still counts', async (_how, text) => {
    const served = await serve();
    const uses = await openUses(served);
    const volume = await createVolume(served);
    const { id } = volume;
    await uses.put(volume, use('h1', 'web-0'), scope);
    writeFileSync(recordOf(served, id, 'h1'), text);
    expect(await uses.list(id, scope)).toEqual([
      { host: 'h1', node: 'h1', users: [], writer: false, stale: false, renewedAt: expect.any(Number) },
    ]);
  });

  test('a record that is not a file, or is unreadable, still counts', async () => {
    const served = await serve();
    const volume = await createVolume(served);
    const { id } = volume;
    await (await openUses(served)).put(volume, use('h1'), scope);
    mkdirSync(recordOf(served, id, 'h2'));
    const connect = connectScripted(served.folder, (real) => ({
      read: (file, ...rest) => (String(file).includes(id) ? refusing('ACCES')() : real.read(file, ...rest)),
    }));
    const uses = await openUses({ ...served, connect });
    const seen = (await uses.list(id, scope)).toSorted((a, b) => (a.host < b.host ? -1 : 1));
    expect(seen).toMatchObject([
      { host: 'h1', node: 'h1', users: [] },
      { host: 'h2', node: 'h2', users: [] },
    ]);
  });

  test('lists the uses on a full disk', async () => {
    const served = await serve();
    const volume = await createVolume(served);
    const { id } = volume;
    await (await openUses(served)).put(volume, use('h1'), scope);
    let isFull = false;
    const connect = connectScripted(served.folder, (real) => ({
      write: (...args) => (isFull ? refusing('NOSPC')() : real.write(...args)),
    }));
    const uses = await openUses({ ...served, connect });
    isFull = true;
    expect(await uses.list(id, scope)).toMatchObject([{ host: 'h1', stale: false }]);
    expect(readdirSync(join(served.folder, '.stowage', 'tmp'))).toEqual([]);
  });

  test('leaves out users that do not fit into a record', async () => {
    const served = await serve();
    const uses = await openUses(served);
    const volume = await createVolume(served);
    const { id } = volume;
    const names = Array.from({ length: 2000 }, (_, i) => `${'x'.repeat(300)}-${i}`);
    await uses.put(volume, use('h1', ...names), scope);
    const [seen] = await uses.list(id, scope);
    expect(seen).toMatchObject({
      node: 'node of h1',
      users: expect.arrayContaining([{ kind: 'pod', name: names[0] }]),
    });
    expect(seen?.users.length).toBeGreaterThan(50);
  });

  test('an empty writer file, left by a crash, counts as no writer', async () => {
    const served = await serve();
    const uses = await openUses(served);
    const volume = await createVolume(served);
    const { id } = volume;
    await uses.takeWriter(volume, 'h1', scope);
    truncateSync(recordOf(served, id, '.writer'));
    await uses.takeWriter(volume, 'h2', scope);
    expect(readFileSync(recordOf(served, id, '.writer'), 'utf8')).toBe('h2');
  });
});

describe.skipIf(lacks('ganesha'))('on nfs-ganesha', () => {
  let parent: string;
  let ganesha: NfsServer;
  let next = 0;
  beforeAll(async () => {
    parent = await exportFolder();
    ganesha = await startGanesha({ exports: [{ path: parent, tag: 'it' }], signal: new AbortController().signal });
  });
  afterAll(async () => {
    await ganesha[Symbol.asyncDispose]();
    await rm(parent, { recursive: true, force: true });
  });
  usesContract(async () => {
    const folder = join(parent, `${++next}`);
    await mkdir(folder);
    const options = { port: `${ganesha.nfsPort}`, mountport: `${ganesha.mountPort}` };
    return { folder, uri: `nfs://${ganesha.host}${folder}`, options, connect: createConnect(systemClock()) };
  });
});

describe('core', () => {
  test('does not delete or rename a volume that another host uses, and names the host, also if it is stale', async () => {
    const own = await startOwnServer({ path: '/export' });
    const port = `${own.server.port}`;
    const served: ServedExport = {
      uri: 'nfs://127.0.0.1/export',
      options: { port, mountport: port },
      folder: own.directory,
      connect: createConnect(systemClock()),
    };
    const server = await startServer({ listen: 'none', kinds: [createLocalStoreKind(), createNfsStoreKind()] });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const { stores, volumes, deletions } = server.core;
    await stores.add('silver', `nfs://127.0.0.1:${port}/export?mountport=${port}`, aCall());
    const wanted = { store: 'silver', name: 'photos', bytes: undefined, access: undefined, labels: {} };
    const volume = await volumes.create(wanted, aCall());
    const { id } = volume;
    const otherHost = await openUses(served, 'instance-2');
    await otherHost.put(volume, use('host-b', 'web-0'), scope);

    const inUse = (silent: string, verb: string) => ({
      code: 'in-use',
      reason: 'volume-in-use-elsewhere',
      action: /^Stop using it there first\. .*: stowage volume release silver\/photos --host host-b$/,
      message: new RegExp(
        `^volume 'silver/photos' cannot be ${verb}: it is used by host node of host-b \\(host-b, pod web-0${silent}\\)$`,
      ),
    });
    expectError(await refusal(deletions.delete(id, undefined, aCall())), inUse('', 'deleted'));
    expectError(await refusal(volumes.rename(id, 'pictures', undefined, aCall())), inUse('', 'renamed'));
    await makeOlder(served, id, 'host-b', staleAfterMs + 5_000);
    const silent = ', silent since \\d{4}-\\d\\d-\\d\\dT[0-9:.]+Z';
    expectError(await refusal(deletions.delete(id, undefined, aCall())), inUse(silent, 'deleted'));
    expect(readdirSync(own.directory).sort()).toEqual(['.stowage', 'photos', 'photos.meta']);
    await otherHost.remove(id, 'host-b', scope);
    expect(await deletions.delete(id, undefined, aCall())).toMatchObject({ outcome: 'deleted' });
    expect(readdirSync(own.directory)).toEqual(['.stowage']);
  });
});
