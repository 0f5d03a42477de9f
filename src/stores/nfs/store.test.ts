import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { describe } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { storeContract } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { type Export, exportFolder, nfsStore } from '#testing/nfs-store.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';

/** An export without a server: the calls of the store run on the local file system. */
async function onDisk(): Promise<Export> {
  const folder = join(await exportFolder(), 'export');
  await mkdir(folder);
  return {
    folder,
    uri: 'nfs://nowhere/export',
    options: {},
    [Symbol.asyncDispose]: () => rm(join(folder, '..'), { recursive: true, force: true }),
  };
}

async function onOwnServer(): Promise<Export> {
  const disk = await onDisk();
  const server = await createNfsServer({
    clock: systemClock(),
    directory: disk.folder,
    state: join(disk.folder, '..', 'state'),
    port: 0,
    path: '/export',
    squash: 'none',
    onError: () => undefined,
  });
  const port = `${server.port}`;
  return {
    ...disk,
    uri: `nfs://${server.host}/export`,
    options: { port, mountport: port },
    [Symbol.asyncDispose]: async () => {
      await server.close();
      await disk[Symbol.asyncDispose]();
    },
  };
}

storeContract('NFS on the local file system', async () => {
  const exported = await onDisk();
  return nfsStore(exported, {}, connectToDisk(exported.folder));
});
storeContract('NFS on our own server', async () => nfsStore(await onOwnServer()));

describe.skipIf(lacks('ganesha'))('nfs-ganesha', () => {
  const ganesha = ganeshaFolders('store');
  /** A directory below the export is a store of its own. */
  storeContract('NFS on ganesha', async () =>
    nfsStore({ ...ganesha.fresh(), [Symbol.asyncDispose]: async () => undefined }),
  );
});
