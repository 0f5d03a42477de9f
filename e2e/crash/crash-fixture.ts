import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, realpath, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { readMountTable } from '#clients/mounter/mountinfo.ts';
import { serve } from '../nfs-serve-fixture.ts';
import { contents } from './volume-contents.ts';
import type { Store } from './workload.ts';

/** The folders, stores and files of the test. */
export interface CrashFixture {
  readonly top: string;
  readonly state: string;
  readonly config: string;
  readonly mounts: string;
  readonly extras: string;
  readonly template: string;
  readonly stores: readonly Store[];
  readonly contested: Store;
  /** Stops the NFS server of the remote stores. */
  end(): Promise<void>;
  /** Adds an unused store to the configuration, or removes it. */
  changeConfig(): Promise<void>;
}

export async function createCrashFixture(): Promise<CrashFixture> {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-crash-')));
  const inTop = (name: string): string => join(top, name);
  const store = (name: string, layout: Store['layout'], onDelete: Store['onDelete']): Store => ({
    name,
    root: inTop(name),
    layout,
    onDelete,
    isRemote: false,
  });
  const remote = (name: string, onDelete: Store['onDelete']): Store => ({
    ...store(name, 'directory', onDelete),
    root: inTop(`remote/${name}`),
    isRemote: true,
  });
  const stores = [
    store('plain', 'directory', 'delete'),
    store('kept', 'directory', 'archive'),
    store('held', 'directory', 'retain'),
    store('images', 'image', 'archive'),
    remote('far', 'archive'),
    remote('farther', 'retain'),
  ];
  const contested = store('contested', 'directory', 'delete');
  for (const name of ['mounts', 'extras', 'unused', 'inside', 'remote']) await mkdir(inTop(name));
  for (const { root } of [...stores, contested]) await mkdir(root);
  await writeFile(inTop('inside/marker'), contents('template'));
  await promisify(execFile)('mkfs.ext4', ['-q', '-d', inTop('inside'), inTop('template.img'), '16M'], {
    timeout: 30_000,
  });
  await rm(inTop('inside'), { recursive: true });

  // The NFS server must survive the kills, so it is a process of its own. It can't run in this process, whose threads
  // may wait for its mounts.
  const server = await serve([
    '--json',
    'nfs',
    'serve',
    inTop('remote'),
    '--state',
    inTop('nfs-state'),
    '--port',
    '0',
    '--async',
  ]);
  const uriOf = (target: Store): string =>
    target.isRemote
      ? `nfs://127.0.0.1/export/${target.name}?port=${server.port}&mountport=${server.port}&onDelete=${target.onDelete}`
      : `local://${target.root}?layout=${target.layout}&onDelete=${target.onDelete}`;
  const lines = [...stores, contested].map((store) => `  ${store.name}: ${uriOf(store)}`);
  const config = inTop('stowage.yaml');
  let addsUnused = false;
  const changeConfig = async (): Promise<void> => {
    const unused = addsUnused ? [`  unused: local://${inTop('unused')}`] : [];
    await writeFile(`${config}.new`, ['version: 1', 'stores:', ...lines, ...unused, ''].join('\n'));
    await rename(`${config}.new`, config);
    addsUnused = !addsUnused;
  };
  await changeConfig();
  const folders = {
    state: inTop('state'),
    mounts: inTop('mounts'),
    extras: inTop('extras'),
    template: inTop('template.img'),
  };
  return { top, config, stores, contested, changeConfig, ...folders, end: async () => void (await server.end()) };
}

export async function loopsOn(folder: string): Promise<string[]> {
  const found: string[] = [];
  for (const device of await readdir('/sys/block')) {
    const backing = await readFile(`/sys/block/${device}/loop/backing_file`, 'utf8').catch(() => '');
    if (backing.startsWith(folder)) found.push(backing.trim());
  }
  return found;
}

export async function mountsUnder(folder: string): Promise<string[]> {
  const { entries } = await readMountTable();
  return entries.map(({ at }) => at).filter((at) => at.startsWith(folder));
}

const cleanupLimitMs = 60_000;

/**
 * Waits until the folder is empty, because the server keeps working in the background after it answers. Returns the
 * remaining entries.
 */
export async function entriesAfterCleanup(folder: string): Promise<string[]> {
  for (const since = performance.now(); ; ) {
    const remaining = await readdir(folder);
    if (remaining.length === 0 || performance.now() - since > cleanupLimitMs) return remaining;
    await delay(50);
  }
}
