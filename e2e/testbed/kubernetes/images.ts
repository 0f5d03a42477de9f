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

/** The part of a cluster that builds and imports images. Some images are built before a cluster exists. */
export interface ImageUser {
  /** Imports an image under its own names and under the given ones. */
  importImage(tar: string, ...names: readonly string[]): Promise<void>;
}

export const pauseImage = 'pause:testbed';
/** Increased when the build of the images changes. */
const formatVersion = 1;

/** The pause container holds a pod's namespaces, and reaps orphans. */
const pauseScript = 'trap "exit 0" TERM INT; while :; do sleep 1000000 & wait; done';

/** A tar of the pause image of every pod, in the cache folder. */
export const pauseTar = (signal: AbortSignal): Promise<string> =>
  buildBusyboxImage({ name: pauseImage, config: { Entrypoint: ['/bin/sh', '-c', pauseScript] }, signal });

/** Imports the image that tests run on all nodes of a cluster, and returns its name. */
export const importBusybox = (cluster: ImageUser, signal: AbortSignal): Promise<string> =>
  loadBusybox(
    {
      // Imports the file that an engine would load.
      run: async (...words) => {
        await cluster.importImage(words.at(-1) ?? '');
        return '';
      },
    },
    signal,
  );

export interface SuiteImages {
  /** The program of the end-to-end tests, which lists the images that it uses. */
  readonly suite: string;
  readonly agnhost: string;
  readonly kubectl: string;
}

/** Imports the images of Kubernetes' storage tests, under the names that the tests use. */
export async function importSuiteImages(cluster: ImageUser, files: SuiteImages, signal: AbortSignal): Promise<void> {
  // Each run of the program leaves a temporary folder behind.
  await using temporary = await mkdtempDisposable(join(tmpdir(), 'stowage-suite-'));
  const listed = (await runner(signal)('env', [`TMPDIR=${temporary.path}`, files.suite, '--list-images'])).split('\n');
  // The list also contains older versions of some images.
  const imagesNamed = (name: string): readonly string[] => listed.filter((image) => image.includes(`/${name}:`));
  const config = { Entrypoint: ['/agnhost'], Cmd: ['pause'] };
  const tar = await buildBusyboxImage({
    name: 'agnhost:testbed',
    config,
    programs: { agnhost: files.agnhost },
    signal,
  });
  await cluster.importImage(tar, ...imagesNamed('agnhost'));
  await cluster.importImage(await pauseTar(signal), ...imagesNamed('pause'));
  const populatorConfig = { Entrypoint: ['/bin/sh', '-c', populator, 'populator'] };
  const programs = { kubectl: files.kubectl };
  const populatorTar = await buildBusyboxImage({
    name: 'populator:testbed',
    config: populatorConfig,
    programs,
    signal,
  });
  await cluster.importImage(populatorTar, ...imagesNamed('hello-populator'));
  // An image without users, because the tests use numeric ids. Of the nginx image, the tests use the shell only.
  const shell = await buildBusyboxImage({ name: 'shell:testbed', config: { Cmd: ['/bin/sh'] }, signal });
  await cluster.importImage(shell, ...imagesNamed('busybox'), ...imagesNamed('nginx'));
}

interface BusyboxImageOptions {
  readonly name: string;
  readonly config: { readonly Entrypoint?: readonly string[]; readonly Cmd?: readonly string[] };
  /** More programs for the root folder, by name. */
  readonly programs?: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
}

async function buildBusyboxImage({ name, config, programs = {}, signal }: BusyboxImageOptions): Promise<string> {
  const busybox = onPath('busybox') ?? 'busybox';
  const base64 = [busybox, ...Object.values(programs)].map((file) => readFileSync(file, 'base64'));
  const key = digest(`${formatVersion}`, JSON.stringify(config), ...base64);
  const tar = join(cacheFolder(), `${name.split(':')[0]}-${key}.tar`);
  if (existsSync(tar)) return tar;
  const run = runner(signal);
  await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-image-'));
  const root = join(work.path, 'root');
  await installBusybox(root, busybox, run);
  for (const [called, program] of Object.entries(programs)) await copyFile(program, join(root, called));
  const environment = { Env: ['PATH=/bin'] };
  const partialTar = await pack({ root, name, config: { ...config, ...environment }, work: work.path, run });
  await mkdir(cacheFolder(), { recursive: true });
  await cp(partialTar, `${tar}.${process.pid}`);
  await rename(`${tar}.${process.pid}`, tar);
  return tar;
}

async function installBusybox(root: string, busybox: string, run: Run): Promise<void> {
  for (const name of ['bin', 'etc', 'tmp', 'root']) await mkdir(join(root, name), { recursive: true });
  await run('chmod', ['1777', join(root, 'tmp')]);
  await copyFile(busybox, join(root, 'bin/busybox'));
  const applets = (await run(busybox, ['--list'])).split('\n').filter((name) => name !== '' && name !== 'busybox');
  for (const applet of applets) await symlink('busybox', join(root, 'bin', applet));
}
