import { readlinkSync, rmSync } from 'node:fs';
import { readdir, readFile, rm } from 'node:fs/promises';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Store } from '#core/ports.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { startGoNfs } from '#testbed/go-nfs.ts';
import { needs } from '#testbed/needs.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { startRustNfs } from '#testbed/nfs3-server.ts';
import { type StoreUnderTest, scope, storeContract } from '#testing/contracts/store.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { openExport } from '#testing/nfs-export.ts';
import { nfsStore, openNfs } from '#testing/nfs-store.ts';
import { isNfsError, removeTree, stability, walkTree } from '#wire/nfs3/index.ts';

// Servers that do not follow the protocol in all things.

const portsOf = ({ nfsPort, mountPort }: NfsServer) => ({ port: `${nfsPort}`, mountport: `${mountPort}` });

describe.skipIf(needs('go-nfs'))('go-nfs', () => {
  storeContract('NFS on go-nfs', async () => {
    const folder = quickFolder('go-nfs');
    const server = await startGoNfs({ path: folder, signal: scope.signal });
    return nfsStore({
      ...{ folder, uri: `nfs://${server.host}/`, options: portsOf(server) },
      [Symbol.asyncDispose]: async () => {
        await server[Symbol.asyncDispose]();
        await rm(folder, { recursive: true, force: true });
      },
    });
  });
});

/** What it keeps is in its memory: a test looks and changes things through the server as well. */
async function onRust(): Promise<StoreUnderTest> {
  const server = await startRustNfs(scope.signal);
  const { nfs, root, [Symbol.dispose]: hangUp } = await openExport(server, '/');
  const open = (readOnly: boolean): Promise<Store> =>
    openNfs({ uri: `nfs://${server.host}/`, options: portsOf(server), readOnly });
  let store = await open(false);
  const again = async (readOnly: boolean): Promise<Store> => {
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
    reopen: () => again(false),
    reopenReadOnly: () => again(true),
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
        const into = Buffer.alloc(attributes?.size ?? 0);
        await nfs.read(handle, 0, into);
        return into.toString();
      } catch (cause) {
        if (isNfsError(cause, 'NOENT')) return undefined;
        throw cause;
      }
    },
    count: async () => {
      let count = 0;
      await walkTree(nfs, root, () => ++count);
      return count;
    },
    [Symbol.asyncDispose]: async () => {
      await store.close();
      hangUp();
      await server[Symbol.asyncDispose]();
    },
  };
}

describe.skipIf(needs('nfs3-server'))('nfs3_server', () => {
  storeContract('NFS on nfs3_server', onRust);
});
