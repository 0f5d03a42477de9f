import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, open, readdir, readFile, rename, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { unmountedImage } from '#base/e2fsprogs.ts';
import type { NodeName, StoreConfig, Volume } from '#core/model.ts';
import { storeName } from '#core/names.ts';
import type { FileStore } from '#stores/file-store/verbs.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { type StoreUnderTest, scope } from './contracts/store.ts';
import { defaultPolicy as policy } from './default-policy.ts';

const run = promisify(execFile);

export interface LocalStoreUnderTest extends StoreUnderTest<FileStore> {
  readonly root: string;
  /** An absolute path in the store. */
  at(...parts: readonly string[]): string;
  close(): Promise<void>;
}

function localConfig(root: string, options: Readonly<Record<string, string>> = {}): StoreConfig {
  return { name: storeName('test'), uri: `local://${root}`, origin: 'api', policy, options };
}

export interface OpenOptions {
  readonly options?: Readonly<Record<string, string>>;
  readonly readOnly?: boolean;
  readonly instance?: string;
  readonly identity?: string | undefined;
}

export function openLocal(
  root: string,
  { options = {}, readOnly = false, instance = 'instance-1', identity }: OpenOptions = {},
): Promise<FileStore> {
  const node = 'node-1' as NodeName;
  const context = { instance, node, identity };
  return createLocalStoreKind().open(localConfig(root, options), { ...policy, readOnly }, context, scope);
}

/** Opens a store in a new folder, or in `root` if the test provides one (a mount). */
export async function localStore(
  options: Readonly<Record<string, string>> = {},
  given?: string,
): Promise<LocalStoreUnderTest> {
  const root = given ?? (await mkdtemp(join(tmpdir(), 'stowage-store-')));
  const image = options['layout'] === 'image';
  const dataOf = (name: string): string => join(root, image ? `${name}.img` : name);
  let store: FileStore | undefined = await openLocal(root, { options });
  const close = async (): Promise<void> => {
    const open = store;
    store = undefined;
    await open?.close();
  };
  const again = async (readOnly: boolean): Promise<FileStore> => {
    await close();
    store = await openLocal(root, { options, readOnly });
    return store;
  };
  return {
    get store() {
      if (store === undefined) throw new Error('the store is closed');
      return store;
    },
    root,
    close,
    instance: 'instance-1',
    at: (...parts) => join(root, ...parts),
    reopen: () => again(false),
    reopenReadOnly: () => again(true),
    plant: (name) => (image ? plantImage(dataOf(name)) : mkdir(dataOf(name)).then(() => undefined)),
    // Renames the data out of the store, which takes no time whatever their size.
    lose: async (volume) => {
      await rename(dataOf(volume.name), `${root}.lost`);
      await rm(`${root}.lost`, { recursive: true });
    },
    mark: (volume, text) =>
      image ? markImage(dataOf(volume.name), text) : writeFile(join(dataOf(volume.name), 'mark'), text),
    readMark: (volume: Volume) =>
      image ? readImageMark(dataOf(volume.name)) : readIfThere(join(dataOf(volume.name), 'mark')),
    // The first `reclaim` creates the reserve, so it comes before the count.
    count: async () =>
      (await readdir(root, { recursive: true })).filter((entry) => !entry.startsWith('.stowage/reserve')).length,
    [Symbol.asyncDispose]: async () => {
      await close();
      if (given === undefined) await rm(root, { recursive: true, force: true });
    },
  };
}

async function plantImage(path: string): Promise<void> {
  await writeFile(path, '');
  await truncate(path, 48 * 1024 * 1024);
  await run('mkfs.ext4', ['-q', '-F', path], {
    env: { ...process.env, ...unmountedImage, PATH: `${process.env['PATH']}:/usr/sbin:/sbin` },
  });
}

// The offset of a mark in free blocks of the test images. A test recognizes the image by the mark, without mounting it.
const markAt = 30 * 1024 * 1024;

async function markImage(path: string, text: string): Promise<void> {
  const file = await open(path, 'r+');
  await file.write(text, markAt);
  await file.close();
}

async function readImageMark(path: string): Promise<string | undefined> {
  const file = await open(path, 'r');
  const { buffer } = await file.read(Buffer.alloc(64), 0, 64, markAt);
  await file.close();
  const text = buffer.subarray(0, buffer.indexOf(0)).toString();
  return text === '' ? undefined : text;
}

async function readIfThere(path: string): Promise<string | undefined> {
  return readFile(path, 'utf8').catch(() => undefined);
}
