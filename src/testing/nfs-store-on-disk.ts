import { rm } from 'node:fs/promises';
import { onTestFinished } from 'vitest';
import { connectToDisk } from './fakes/nfs-on-disk.ts';
import { exportFolder, type NfsStoreUnderTest, nfsStore } from './nfs-store.ts';

/** An NFS store without a server, in a temporary folder. The test removes both at its end. */
export async function nfsStoreOnDisk(options: Readonly<Record<string, string>> = {}): Promise<NfsStoreUnderTest> {
  const folder = await exportFolder();
  const end = (): Promise<void> => rm(folder, { recursive: true, force: true });
  const exported = { folder, uri: 'nfs://nowhere/export', options, [Symbol.asyncDispose]: end };
  const under = await nfsStore(exported, {}, connectToDisk(folder));
  onTestFinished(() => under[Symbol.asyncDispose]());
  return under;
}
