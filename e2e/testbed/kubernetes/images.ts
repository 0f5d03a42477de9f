import { existsSync, readFileSync } from 'node:fs';
import { copyFile, cp, mkdir, mkdtempDisposable, rename, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadBusybox } from '../busybox.ts';
import { cacheFolder, onPath, type Run } from '../component.ts';
import { pack } from '../pack-image.ts';
import { digest } from '../rootfs.ts';
import { runner } from '../run.ts';
import { populator } from './populator.ts';

/** What of a cluster is asked here: images are made before there is one. */
export interface ImageUser {
  /** Makes an image known, by the name that it has and by others. */
  importImage(tar: string, ...names: readonly string[]): Promise<void>;
}

export const pauseImage = 'pause:testbed';
/** Counted up when the way of making changes. */
const format = 1;

/** It holds a pod's namespaces, and waits for those processes whose parents ended. */
const pause = 'trap "exit 0" TERM INT; while :; do sleep 1000000 & wait; done';

/** A tar of the image that every pod begins with, kept in the cache folder. */
export const pauseTar = (signal: AbortSignal): Promise<string> =>
  busyboxWith({ name: pauseImage, config: { Entrypoint: ['/bin/sh', '-c', pause] }, signal });

/** Makes the image that tests run known to all nodes of a cluster, and gives the name to run it by. */
export const importBusybox = (cluster: ImageUser, signal: AbortSignal): Promise<string> =>
  loadBusybox(
    {
      // It asks an engine to load a file.
      run: async (...words) => {
        await cluster.importImage(words.at(-1) ?? '');
        return '';
      },
    },
    signal,
  );

export interface SuiteImages {
  /** The end-to-end tests, which tell what images they use. */
  readonly suite: string;
  readonly agnhost: string;
  readonly kubectl: string;
}

/** Makes those images known that Kubernetes' own tests of storage use, by the names that they ask for. */
export async function importSuiteImages(cluster: ImageUser, from: SuiteImages, signal: AbortSignal): Promise<void> {
  // It leaves a temporary folder behind, each time.
  await using own = await mkdtempDisposable(join(tmpdir(), 'stowage-suite-'));
  const listed = (await runner(signal)('env', [`TMPDIR=${own.path}`, from.suite, '--list-images'])).split('\n');
  // Of some there are older ones too.
  const named = (name: string): readonly string[] => listed.filter((image) => image.includes(`/${name}:`));
  const config = { Entrypoint: ['/agnhost'], Cmd: ['pause'] };
  const tar = await busyboxWith({ name: 'agnhost:testbed', config, programs: { agnhost: from.agnhost }, signal });
  await cluster.importImage(tar, ...named('agnhost'));
  await cluster.importImage(await pauseTar(signal), ...named('pause'));
  const filling = { Entrypoint: ['/bin/sh', '-c', populator, 'populator'] };
  const programs = { kubectl: from.kubectl };
  const filler = await busyboxWith({ name: 'populator:testbed', config: filling, programs, signal });
  await cluster.importImage(filler, ...named('hello-populator'));
  // One that knows no users: the tests look for their numbers. Of nginx only the shell is used.
  const shell = await busyboxWith({ name: 'shell:testbed', config: { Cmd: ['/bin/sh'] }, signal });
  await cluster.importImage(shell, ...named('busybox'), ...named('nginx'));
}

interface BusyboxWith {
  readonly name: string;
  readonly config: { readonly Entrypoint?: readonly string[]; readonly Cmd?: readonly string[] };
  /** Further programs, put at the top by these names. */
  readonly programs?: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
}

async function busyboxWith({ name, config, programs = {}, signal }: BusyboxWith): Promise<string> {
  const busybox = onPath('busybox') ?? 'busybox';
  const base64 = [busybox, ...Object.values(programs)].map((file) => readFileSync(file, 'base64'));
  const key = digest(`${format}`, JSON.stringify(config), ...base64);
  const tar = join(cacheFolder(), `${name.split(':')[0]}-${key}.tar`);
  if (existsSync(tar)) return tar;
  const run = runner(signal);
  await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-image-'));
  const root = join(work.path, 'root');
  await layOut(root, busybox, run);
  for (const [called, program] of Object.entries(programs)) await copyFile(program, join(root, called));
  const environment = { Env: ['PATH=/bin'] };
  const half = await pack({ root, name, config: { ...config, ...environment }, work: work.path, run });
  await mkdir(cacheFolder(), { recursive: true });
  await cp(half, `${tar}.${process.pid}`);
  await rename(`${tar}.${process.pid}`, tar);
  return tar;
}

async function layOut(root: string, busybox: string, run: Run): Promise<void> {
  for (const name of ['bin', 'etc', 'tmp', 'root']) await mkdir(join(root, name), { recursive: true });
  await run('chmod', ['1777', join(root, 'tmp')]);
  await copyFile(busybox, join(root, 'bin/busybox'));
  const applets = (await run(busybox, ['--list'])).split('\n').filter((name) => name !== '' && name !== 'busybox');
  for (const applet of applets) await symlink('busybox', join(root, 'bin', applet));
}
