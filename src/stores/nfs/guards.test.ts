import { existsSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { refusal } from '#testing/expected-errors.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { openLocal } from '#testing/local-store.ts';
import { exportFolder, nfsStore, openNfs } from '#testing/nfs-store.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import type { NfsClient } from '#wire/nfs3/index.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import type { Connect } from './connect.ts';
import { createNfsStoreKind } from './kind.ts';

async function newFolder(): Promise<string> {
  const folder = await exportFolder();
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

describe('one directory, as a local store and over NFS', () => {
  test('a local store is refused over NFS, unless read-only', async () => {
    const folder = await newFolder();
    const local = await openLocal(folder);
    onTestFinished(() => local.close());
    await local.create(volumeSpec('precious'), scope);
    const kind = createNfsStoreKind(systemClock(), connectToDisk(folder));
    const uri = 'nfs://nowhere/export';
    expect(await refusal(openNfs({ uri, kind }))).toMatchObject({ code: 'conflict', reason: 'store-local-elsewhere' });
    const reader = await openNfs({ uri, kind, readOnly: true });
    expect(await reader.names(scope)).toEqual(['precious']);
    await reader.close();
  });

  test('an NFS store is refused as a local one, unless read-only', async () => {
    const folder = await newFolder();
    const kind = createNfsStoreKind(systemClock(), connectToDisk(folder));
    const store = await openNfs({ uri: 'nfs://nowhere/export', kind });
    await store.create(volumeSpec('precious'), scope);
    await store.close();
    expect(await refusal(openLocal(folder))).toMatchObject({ code: 'conflict', reason: 'store-shared-elsewhere' });
    const reader = await openLocal(folder, { readOnly: true });
    expect(await reader.names(scope)).toEqual(['precious']);
    await reader.close();
  });
});

test('deletes a volume that another host has just renamed', async () => {
  const folder = await newFolder();
  const exported = { folder, uri: 'nfs://nowhere/export', options: {}, [Symbol.asyncDispose]: async () => undefined };
  const storeUnderTest = await nfsStore(exported, {}, connectToDisk(folder));
  const other = await storeUnderTest.another('instance-2');
  const made = await storeUnderTest.store.create(volumeSpec('a'), scope);
  await other.rename(made, volumeName('b'), scope);
  await storeUnderTest.store.delete(made, scope);
  expect(existsSync(join(folder, 'b'))).toBe(false);
  expect(await storeUnderTest.store.names(scope)).toEqual([]);
});

test('a store opens through its second address if the first accepts connections and does not answer', async () => {
  const folder = await newFolder();
  await mkdir(join(folder, 'export'));
  const server = await createNfsServer({
    clock: systemClock(),
    directory: join(folder, 'export'),
    state: join(folder, 'state'),
    port: 0,
    path: '/export',
    squash: 'none',
    onError: () => undefined,
  });
  onTestFinished(() => server.close());
  const sockets = new Set<Socket>();
  const silent = createServer((socket) => sockets.add(socket.on('error', () => undefined)));
  await new Promise<void>((resolve) => silent.listen(server.port, '127.0.0.2', resolve));
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    silent.close();
  });
  const options = { port: `${server.port}`, mountport: `${server.port}`, timeout: '3s' };
  const store = await openNfs({ uri: `nfs://127.0.0.2,${server.host}/export`, options });
  onTestFinished(() => store.close());
  expect((await store.create(volumeSpec('a'), scope)).name).toBe('a');
  expect(sockets.size).toBeGreaterThan(0);
}, 30_000);

test('a write to a server that keeps no data ends with an error', async () => {
  const folder = await newFolder();
  let writes = 0;
  let verifier = 0n;
  const connect: Connect = async (...args) => {
    const session = await connectToDisk(folder)(...args);
    const nfs: NfsClient = {
      ...session.nfs,
      write: async (...args) => {
        writes++;
        return { ...(await session.nfs.write(...args)), committed: 0, verifier: ++verifier };
      },
      commit: async () => ({ verifier: ++verifier }),
    };
    return { ...session, nfs };
  };
  await refusal(openNfs({ uri: 'nfs://nowhere/export', kind: createNfsStoreKind(systemClock(), connect) }));
  expect(writes).toBeLessThan(10);
});
