import { mkdirSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeSpec } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { freePorts, loopbackAddress } from '#testbed/daemon.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { startGoNfs } from '#testbed/go-nfs.ts';
import { lacks } from '#testbed/lacks.ts';
import { startRustNfs } from '#testbed/nfs3-server.ts';
import { type StoreUnderTest, scope, storeContract } from '#testing/contracts/store.ts';
import { openExtraAddress } from '#testing/extra-address.ts';
import { portsOf } from '#testing/ganesha-folders.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { openExport } from '#testing/nfs-export.ts';
import { isOfVolumes, nfsStore, openNfs } from '#testing/nfs-store.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { isNfsError, removeTree, stability, walkTree } from '#wire/nfs3/index.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Servers that violate the protocol in some points, and stores with many volumes or connections.

const spec = (name: string, more: Partial<VolumeSpec> = {}): VolumeSpec =>
  volumeSpec(name, { requestId: `${Math.random()}`, ...more });

describe.skipIf(lacks('go-nfs'))('go-nfs', () => {
  storeContract('NFS on go-nfs', async () => {
    const folder = quickFolder('go-nfs');
    const server = await startGoNfs({ path: folder, signal: scope.signal });
    return nfsStore({
      folder,
      uri: `nfs://${server.host}/`,
      options: portsOf(server),
      [Symbol.asyncDispose]: async () => {
        await server[Symbol.asyncDispose]();
        await rm(folder, { recursive: true, force: true });
      },
    });
  });
});

/** This server keeps its files in memory, so the tests access them through the server, too. */
async function startNfs3Server(): Promise<StoreUnderTest<FileStore>> {
  const server = await startRustNfs(scope.signal);
  const { nfs, root, [Symbol.dispose]: hangUp } = await openExport(server, '/');
  const open = (readOnly: boolean): Promise<FileStore> =>
    openNfs({ uri: `nfs://${server.host}/`, options: portsOf(server), readOnly });
  let store = await open(false);
  const reopen = async (readOnly: boolean): Promise<FileStore> => {
    await store.close();
    store = await open(readOnly);
    return store;
  };
  const dataOf = async (name: string) => (await nfs.lookup(root, name)).handle;
  return {
    get store() {
      return store;
    },
    instance: 'instance-1',
    reopen: () => reopen(false),
    reopenReadOnly: () => reopen(true),
    plant: async (name) => {
      await nfs.mkdir(root, name, {});
    },
    lose: ({ name }) => removeTree(nfs, root, name),
    mark: async ({ name }, text) => {
      const { handle } = await nfs.create(await dataOf(name), 'mark', { mode: 'guarded', set: {} });
      await nfs.write(handle, 0, Buffer.from(text), stability.fileSync);
    },
    readMark: async ({ name }) => {
      try {
        const { handle, attributes } = await nfs.lookup(await dataOf(name), 'mark');
        const buffer = Buffer.alloc(attributes?.size ?? 0);
        await nfs.read(handle, 0, buffer);
        return buffer.toString();
      } catch (cause) {
        if (isNfsError(cause, 'NOENT')) return undefined;
        throw cause;
      }
    },
    count: async () => {
      let count = 0;
      await walkTree(nfs, root, ({ path }) => {
        if (isOfVolumes(path)) count++;
      });
      return count;
    },
    [Symbol.asyncDispose]: async () => {
      await store.close();
      hangUp();
      await server[Symbol.asyncDispose]();
    },
  };
}

describe.skipIf(lacks('nfs3-server'))('nfs3_server', () => {
  storeContract('NFS on nfs3_server', startNfs3Server);
});

describe.each([
  ['go-nfs', (path: string) => startGoNfs({ path, signal: scope.signal })],
  ['nfs3-server', () => startRustNfs(scope.signal)],
] as const)('several hosts on %s', (title, start) => {
  test.skipIf(lacks(title))('make one volume for a name, and every change counts', async () => {
    const folder = quickFolder('quirks');
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    await using server = await start(folder);
    const open = (instance: string): Promise<FileStore> =>
      openNfs({ uri: `nfs://${server.host}/`, options: portsOf(server), instance });
    // One after the other, here and below: go-nfs does not create exclusively, so two concurrent calls may both succeed.
    const stores = [await open('one'), await open('two'), await open('three')];
    expect(new Set(stores.map(({ identity }) => identity)).size).toBe(1);
    const want = spec('a');
    const [first, ...others] = stores as [FileStore, ...FileStore[]];
    const volume = await first.create(want, scope);
    for (const store of others) {
      expect((await store.create({ ...want, id: newVolumeId() }, scope)).id).toBe(volume.id);
      const other = store.create({ ...want, requestId: 'another' }, scope);
      await expect(other).rejects.toMatchObject({ reason: 'volume-exists' });
    }
    for (const [i, store] of stores.entries()) await store.label(volume, { [`${i}`]: 'x' }, scope);
    expect((await stores[0]?.get(volume.name, scope))?.volume.revision).toBe(4);
    for (const store of stores) await store.close();
  });
});

test('stores on one server share its connections; closing one leaves the others', async () => {
  const parent = quickFolder('shared');
  onTestFinished(() => rmSync(parent, { recursive: true, force: true }));
  const directory = join(parent, 'exported');
  for (const name of ['one', 'two', 'three']) mkdirSync(join(directory, name), { recursive: true });
  const serverOptions = { clock: systemClock(), directory, state: join(parent, 'state'), port: 0, path: '/' } as const;
  const server = await createNfsServer({ ...serverOptions, squash: 'none', onError: () => undefined });
  onTestFinished(() => server.close());
  const host = loopbackAddress();
  const [port = 0, mountPort = 0] = await freePorts(host, 2);
  const nfsAddress = await openExtraAddress(host, port, server);
  // Each store opens one connection to the MOUNT service and closes it again.
  await openExtraAddress(host, mountPort, server);

  const kind = createNfsStoreKind(systemClock(), createConnect(systemClock()));
  const ports = { port: `${port}`, mountport: `${mountPort}` };
  const open = (name: string, options = {}): Promise<FileStore> =>
    openNfs({ uri: `nfs://${host}/${name}`, options: { ...ports, ...options }, kind });
  const [one, two] = [await open('one'), await open('two')];
  await Promise.all([one, two].flatMap((store) => ['a', 'b', 'c'].map((called) => store.create(spec(called), scope))));
  expect(nfsAddress.open).toBe(1);
  // Stores with other connection options have their own connections.
  const three = await open('three', { nconnect: '2' });
  await Promise.all(['a', 'b', 'c'].map((called) => three.create(spec(called), scope)));
  expect(nfsAddress.open).toBe(3);

  await one.close();
  expect((await two.create(spec('d'), scope)).name).toBe('d');
  expect(nfsAddress.used).toBe(3);
  await two.close();
  await three.close();
  await expect.poll(() => nfsAddress.open).toBe(0);
  await expect(two.create(spec('e'), scope)).rejects.toThrow(StowageError);
});

test.skipIf(lacks('ganesha'))('a store with 5,000 volumes lists each of them once', async () => {
  const folder = realpathSync(quickFolder('many'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  await using server = await startGanesha({ exports: [{ path: folder, tag: 'many' }], signal: scope.signal });
  const ids = new Map<string, string>();
  for (let i = 0; i < 5_000; i++) {
    const { bytes: _, ...want } = spec(`volume-${i}`);
    ids.set(want.name, want.id);
    mkdirSync(join(folder, want.name));
    writeFileSync(join(folder, `${want.name}.meta`), JSON.stringify({ version: 1, ...want, revision: 1 }));
  }
  const store = await openNfs({ uri: `nfs://${server.host}${folder}`, options: portsOf(server) });
  expect((await store.names(scope)).toSorted()).toEqual([...ids.keys()].sort());
  const marks = await store.changedByOthers?.revisions?.(scope);
  expect([marks?.size, new Set(marks?.values()).size]).toEqual([5_000, 5_000]);
  const listed = await Array.fromAsync(store.list(scope));
  expect(listed.length).toBe(5_000);
  expect(listed.filter(({ name, id }) => ids.get(name) !== id)).toEqual([]);
  await store.close();
});
