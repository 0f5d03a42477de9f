import { mkdir, mkdtemp, readdir, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '#base/clock.ts';
import type { NodeName, StoreConfig, Volume } from '#core/model.ts';
import { storeName } from '#core/names.ts';
import type { ProcessMarks } from '#core/ports.ts';
import type { FileStore, FileStoreKind } from '#stores/file-store/verbs.ts';
import { type Connect, createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { newProcessMark } from '#stores/nfs/lock-marks.ts';
import { parseOptions } from '#stores/nfs/options.ts';
import { removeTree } from '#wire/nfs3/index.ts';
import { type StoreUnderTest, scope } from './contracts/store.ts';
import { defaultPolicy as policy } from './default-policy.ts';

export interface NfsStoreUnderTest extends StoreUnderTest<FileStore> {
  /** The folder that the server exports, where the store's files can be inspected. */
  readonly folder: string;
  /** Opens the same export as another host. It is closed with the first store. */
  another(instance: string, options?: Readonly<Record<string, string>>): Promise<FileStore>;
}

export interface Export extends AsyncDisposable {
  /** The export's folder on this machine, so that a test can inspect and change files without the server. */
  readonly folder: string;
  readonly uri: string;
  readonly options: Readonly<Record<string, string>>;
}

const nfsConfig = (uri: string, options: Readonly<Record<string, string>>): StoreConfig => ({
  name: storeName('test'),
  uri,
  origin: 'api',
  policy,
  options,
});

export interface OpenNfs {
  readonly uri: string;
  readonly options?: Readonly<Record<string, string>>;
  readonly readOnly?: boolean;
  readonly instance?: string;
  readonly identity?: string | undefined;
  readonly kind?: FileStoreKind;
  readonly marks?: ProcessMarks;
}

export function openNfs({
  uri,
  options = {},
  readOnly = false,
  instance = 'instance-1',
  identity,
  kind = createNfsStoreKind(),
  marks,
}: OpenNfs): Promise<FileStore> {
  const context = { instance, node: 'node-1' as NodeName, identity, marks };
  return kind.open(nfsConfig(uri, options), { ...policy, readOnly }, context, scope);
}

/** A store on an export. Disposing of the store ends the export. */
export async function nfsStore(
  exported: Export,
  more: Readonly<Record<string, string>> = {},
  connect?: Connect,
): Promise<NfsStoreUnderTest> {
  const { folder, uri } = exported;
  const options = { ...exported.options, ...more };
  const clock = systemClock();
  const reach = connect ?? createConnect(clock);
  const dataOf = ({ name }: Pick<Volume, 'name'>): string => join(folder, name);
  const opened: FileStore[] = [];
  const lives = createProcesses();
  const opening = async (readOnly: boolean, instance = 'instance-1', extra = {}): Promise<FileStore> => {
    const kind = createNfsStoreKind(clock, reach, connect && (() => connect));
    const marks = lives(instance);
    const store = await openNfs({ uri, options: { ...options, ...extra }, readOnly, instance, kind, marks });
    opened.push(store);
    return store;
  };
  let store = await opening(false);
  const again = async (readOnly: boolean): Promise<FileStore> => {
    await store.close();
    store = await opening(readOnly);
    return store;
  };
  return {
    get store() {
      return store;
    },
    folder,
    instance: 'instance-1',
    another: (instance, extra) => opening(false, instance, extra),
    reopen: () => again(false),
    reopenReadOnly: () => again(true),
    plant: (name) => mkdir(join(folder, name)),
    // Through the server, because its cache would be stale otherwise.
    lose: async (volume) => {
      const session = await reach(parseOptions(uri, options), () => undefined, scope.signal);
      await removeTree(session.nfs, await session.mount(scope.signal), volume.name);
      session.close();
    },
    mark: (volume, text) => writeFile(join(dataOf(volume), 'mark'), text),
    readMark: (volume) => readFile(join(dataOf(volume), 'mark'), 'utf8').catch(() => undefined),
    count: async () => (await readdir(folder, { recursive: true })).filter(isOfVolumes).length,
    [Symbol.asyncDispose]: async () => {
      for (const each of opened) await each.close().catch(() => undefined);
      await exported[Symbol.asyncDispose]();
    },
  };
}

/** Whether a path belongs to volumes, and not to the store's reserve or its observations. */
export const isOfVolumes = (path: string): boolean => !/^\.stowage\/(reserve|observed)(\/|$)/.test(path);

export const exportFolder = (): Promise<string> => mkdtemp(join(tmpdir(), 'stowage-nfs-store-'));

/** Process marks of successive processes on one machine with the same state folder, by instance. */
export function createProcesses(): (instance: string) => ProcessMarks {
  const known = new Map<string, readonly number[]>();
  return (instance) => {
    const dead = known.get(instance) ?? [];
    const own = newProcessMark();
    known.set(instance, [own, ...dead]);
    return { own, dead };
  };
}
