import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { cachedBuild, repository } from '#testbed/component.ts';
import type { Engine } from '#testbed/dockerd.ts';
import { type GaneshaExport, ganeshaDaemon, quietEnvironment } from '#testbed/ganesha.ts';
import { runInside } from '#testbed/machine.ts';
import { digest } from '#testbed/rootfs.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';

/** The arguments of the `docker run` line for `stowage node` at the head of deploy/Dockerfile. */
export function documentedRunWords(): readonly string[] {
  const head = readFileSync(join(repository, 'deploy', 'Dockerfile'), 'utf8').replaceAll(/^# {0,3}/gm, '');
  const [line = ''] = head.replaceAll(/\\\n\s*/g, '').match(/^docker run .* stowage node$/m) ?? [];
  return line.split(/\s+/).slice(1);
}

/** These arguments, adapted to an engine of the test bed, whose files are in another folder. */
function runWordsFor(engine: Engine, image: string): readonly string[] {
  const netns = join(dirname(engine.socket), 'exec', 'netns');
  const adaptedWords: Readonly<Record<string, string>> = {
    '/run/docker.sock:/run/docker.sock': `${engine.socket}:/run/docker.sock`,
    '/run:/host/run:ro,rslave': `${dirname(engine.socket)}:/host/run:ro,rslave`,
    '/run/docker/netns:/run/docker/netns:rslave': `${netns}:${netns}:rslave`,
  };
  const words = documentedRunWords().map((word) => adaptedWords[word] ?? word);
  return [...words.slice(0, -2), image, 'node', '--log-level', 'info'];
}

/** Starts the container, after an earlier container with its name is gone. */
export async function startStowageIn(engine: Engine, image: string): Promise<void> {
  await engine.docker(...runWordsFor(engine, image));
  await waitUntilAnswering(engine);
}

export const waitUntilAnswering = (engine: Engine): Promise<string> =>
  eventually(
    () => engine.docker('exec', 'stowage', 'stowage', 'status').catch(() => ''),
    (output) => output !== '',
  );

export interface InnerNfsServer extends AsyncDisposable {
  /** The URI of the export with that tag. The machine has several addresses. */
  uri(tag: string, host?: string): string;
  /** The exported folder on this machine. */
  folder(tag: string): string;
}

const preload = (): string => {
  const source = join(repository, 'e2e', 'testbed', 'ganesha', 'preload.c');
  return cachedBuild('ganesha-preload', digest(readFileSync(source, 'utf8')), 'preload.so').tool();
};

/** An NFS server on the engine's machine, with a folder for each export. */
export async function ganeshaIn(
  engine: Engine,
  exports: readonly Omit<GaneshaExport, 'path'>[],
  signal: AbortSignal,
): Promise<InnerNfsServer> {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-inside-')));
  const folder = (tag: string): string => join(top, tag);
  for (const { tag } of exports) await mkdir(folder(tag));
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  // The exports are on the root file system of this machine, or on /tmp.
  const mountLines = mounts.filter((line) => ['/', '/tmp'].includes(line.split(' ')[1] ?? ''));
  await writeFile(join(top, 'mounts'), `${mountLines.join('\n')}\n`);
  const [first, ...others] = exports.map((served) => ({ ...served, path: folder(served.tag) }));
  if (first === undefined) throw new Error('nothing is exported');
  const daemon = await ganeshaDaemon({
    folder: top,
    exports: [first, ...others],
    signal,
    commandPrefix: engine.inside,
    listen: { host: '0.0.0.0', nfsPort: 20_490, mountPort: 20_480 },
    env: { ...quietEnvironment(top), LD_PRELOAD: preload(), STOWAGE_MOUNTS: join(top, 'mounts') },
  });
  return {
    folder,
    uri: (tag, host = '127.0.0.1') => `nfs://${host}${folder(tag)}?port=20490&mountport=20480`,
    [Symbol.asyncDispose]: async () => {
      await daemon.kill();
      await rm(top, { recursive: true, force: true });
    },
  };
}

/** The mount points of NFS volumes below a folder of the engine's machine, without the mounts of parallel tests. */
export async function volumesBelow(engine: Engine, folder: string): Promise<readonly string[]> {
  const table = (await runInside(engine, 'cat', '/proc/mounts')).split('\n').map((line) => line.split(' '));
  return table.flatMap(([source = '', at = '']) =>
    source.startsWith('stowage:') && at.startsWith(`${folder}/`) ? [at] : [],
  );
}
