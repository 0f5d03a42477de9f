import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { loadBusybox } from '#testbed/busybox.ts';
import { repository } from '#testbed/component.ts';
import { dockerCompose } from '#testbed/compose.ts';
import { type Engine, startDockerd } from '#testbed/dockerd.ts';
import { buildImage, imageName } from '#testbed/image.ts';
import { lacks } from '#testbed/lacks.ts';
import { runInside } from '#testbed/machine.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { appendLinesScript } from './docker-fixture.ts';
import { ganeshaIn, type InnerNfsServer, waitUntilAnswering } from './stowage-container.ts';

const guide = (): string => readFileSync(join(repository, 'docs', 'docker.md'), 'utf8');

/** The user's compose file in the guide. */
const documentedProject = (): string =>
  /^### docker compose$.*?^```yaml$\n(.*?)^```$/ms.exec(guide())?.[1] ?? expect.fail('no compose file in the guide');

/** The command that begins with `start`, below a heading of the guide. */
function documentedCommand(heading: string, start: string): string {
  const lines = guide().split('\n');
  const headingIndex = lines.indexOf(heading);
  if (headingIndex === -1) expect.fail(`${heading} is not in the guide`);
  const linesBelow = lines.slice(headingIndex);
  return linesBelow.find((line) => line.startsWith(start)) ?? expect.fail(`${start} is not in the guide`);
}

const nextImage = 'stowage:next';
const required = ['root', 'docker', 'compose', 'busybox', 'mount', 'fuse', 'ganesha', 'firewall'] as const;

describe.skipIf(lacks(...required))('docker compose', () => {
  const end = new AbortController();
  const resources = new AsyncDisposableStack();
  const { signal } = end;
  let engine: Engine;
  let nfs: InnerNfsServer;
  let album: string;

  const docker = (...words: readonly string[]): Promise<string> => engine.docker(...words);
  const stowage = (...words: readonly string[]): Promise<string> => docker('exec', 'stowage', 'stowage', ...words);
  const composeStowage = (words: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<string> =>
    dockerCompose(engine, repository, ['-f', 'deploy/compose.yaml', ...words], { env, signal });
  const composeUser = (...words: readonly string[]): Promise<string> => dockerCompose(engine, album, words, { signal });
  const startUserProject = async (): Promise<string> => {
    onTestFinished(async () => {
      await composeUser('down', '-t', '0', '-v');
    });
    return await composeUser('up', '-d');
  };
  const inspect = async (what: string, field: string): Promise<unknown> =>
    JSON.parse(await docker('inspect', '--format', `{{json ${field}}}`, what));
  const list = async (...words: readonly string[]): Promise<readonly string[]> =>
    (await docker(...words)).split('\n').filter(Boolean).toSorted();
  const keepers = (): Promise<readonly string[]> =>
    list('ps', '-q', '--no-trunc', '--filter', 'label=stowage.dev/keeper');
  const runWords = (...words: readonly string[]): readonly string[] => ['run', '--network', 'none', ...words];
  const loggedLines = (volume: string): readonly string[] =>
    readFileSync(join(nfs.folder('silver'), volume, 'log'), 'utf8')
      .split('\n')
      .slice(0, -1);

  beforeAll(async () => {
    const tar = await buildImage(signal);
    // The engine also listens on the socket that compose.yaml names.
    engine = resources.use(await startDockerd(signal, { bridges: true, args: ['--host', 'unix:///run/docker.sock'] }));
    nfs = resources.use(await ganeshaIn(engine, [{ tag: 'silver' }], signal));
    await docker('load', '--quiet', '--input', tar);
    await docker('tag', await loadBusybox(engine, signal), 'busybox');
    await docker('tag', imageName, 'stowage');
    // A new version of Stowage is a new image.
    const container = await docker('create', imageName);
    await docker('commit', '--change', 'LABEL org.opencontainers.image.version=next', container, nextImage);
    await docker('rm', '-v', container);
    const top = await mkdtemp(join(tmpdir(), 'stowage-compose-'));
    resources.defer(() => rm(top, { recursive: true }));
    // Compose names a project after its folder.
    album = join(top, 'album');
    await mkdir(album);
    await writeFile(join(album, 'compose.yaml'), documentedProject());
    for (const start of ['install ', 'mkdir '])
      await runInside(engine, 'sh', '-c', documentedCommand('### docker compose', start));
    await composeStowage(['up', '-d']);
    await waitUntilAnswering(engine);
    await stowage('store', 'add', 'silver', nfs.uri('silver'));
  }, 300_000);
  afterAll(async () => {
    await resources.disposeAsync();
    end.abort();
  }, 60_000);

  test('starts Stowage with the mounts that it needs', async () => {
    const { Mounts, HostConfig } = (await inspect('stowage', '.')) as {
      readonly Mounts: readonly { readonly Destination: string; readonly Propagation: string; readonly RW: boolean }[];
      readonly HostConfig: Readonly<Record<string, unknown>>;
    };
    expect(Mounts.find(({ Destination }) => Destination === '/var/lib/stowage')).toMatchObject({
      Type: 'bind',
      Source: '/var/lib/stowage',
      Propagation: 'rshared',
      RW: true,
    });
    expect(Mounts.find(({ Destination }) => Destination === '/run/docker/netns')).toMatchObject({
      Type: 'bind',
      Propagation: 'rslave',
    });
    expect(HostConfig).toMatchObject({ Privileged: false, ReadonlyRootfs: true, NetworkMode: 'host' });
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'first');
    onTestFinished(async () => {
      await docker('volume', 'rm', 'first');
    });
    const runBusybox = runWords('--rm', '-v', 'first:/data', 'busybox');
    await docker(...runBusybox, 'sh', '-c', 'echo hello >/data/note');
    expect(await docker(...runBusybox, 'cat', '/data/note')).toBe('hello');
    expect(readFileSync(join(nfs.folder('silver'), 'first', 'note'), 'utf8')).toBe('hello\n');
  });

  test('replaces Stowage while a container writes to a volume', { timeout: 180_000 }, async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'busy');
    await docker(...runWords('-d', '--name', 'writer', '-v', 'busy:/data', 'busybox', 'sh', '-c', appendLinesScript));
    onTestFinished(async () => {
      await docker('rm', '-f', 'writer');
      await docker('volume', 'rm', 'busy');
    });
    /** The container keeps writing after the disturbance. */
    const keepsWriting = async (disturb: () => Promise<unknown>): Promise<void> => {
      await disturb();
      const before = loggedLines('busy').length;
      await eventually(
        () => loggedLines('busy').length,
        (count) => count > before,
      );
    };
    await eventually(
      () => docker('exec', 'writer', 'ls', '/data'),
      (output) => output === 'log',
    );
    const [keepersBefore, idBefore] = [await keepers(), await inspect('stowage', '.Id')];
    expect(keepersBefore).toHaveLength(1);
    const replaceStowage = async (image: string): Promise<void> => {
      await composeStowage(['up', '-d'], { STOWAGE_IMAGE: image });
      await waitUntilAnswering(engine);
      expect(await inspect('stowage', '.Config.Image')).toBe(image);
    };
    await keepsWriting(() => replaceStowage(nextImage));
    expect([await inspect('stowage', '.Id'), await keepers()]).toEqual([
      expect.not.stringMatching(`${idBefore}`),
      keepersBefore,
    ]);
    await expect(stowage('volume', 'delete', 'silver/busy')).rejects.toThrow('container writer');

    // The commands for users who don't want to replace Stowage while containers run.
    await keepsWriting(() => composeStowage(['down']));
    await keepsWriting(() => replaceStowage('stowage'));
    expect(await keepers()).toEqual(keepersBefore);

    await docker(...runWords('--rm', '-v', 'busy:/data', 'busybox', 'touch', '/data/stop'));
    expect(await docker('wait', 'writer')).toBe('0');
    expect(loggedLines('busy')).toEqual(loggedLines('busy').map((_, i) => `line ${i + 1}`));
  });

  test('creates the volume of a project, shares it between services, and keeps it', { timeout: 120_000 }, async () => {
    await startUserProject();
    await eventually(
      () => composeUser('logs', 'viewer'),
      (output) => /UTC \d{4}$/m.test(output),
    );
    expect(await inspect('album_photos', '.Driver')).toBe('stowage');
    expect(await stowage('volume', 'show', 'silver/album_photos')).toMatch(/1(\.0+)? ?GiB/);
    const lines = loggedLines('album_photos').length;
    await composeUser('down', '-t', '0');
    expect(await list('volume', 'ls', '-q')).toContain('album_photos');
    await composeUser('up', '-d');
    await eventually(
      () => loggedLines('album_photos').length,
      (count) => count > lines,
    );
    await composeUser('down', '-t', '0', '-v');
    expect(await readdir(nfs.folder('silver'))).not.toContain('album_photos');
  });

  test('uses an existing volume, as on a second host', { timeout: 120_000 }, async () => {
    await stowage('volume', 'create', 'silver/album_photos');
    expect(await startUserProject()).toContain('was not created by Docker Compose');
    await eventually(
      () => composeUser('logs', 'viewer'),
      (output) => /UTC \d{4}$/m.test(output),
    );
    await composeUser('down', '-t', '0', '-v');
    expect(await readdir(nfs.folder('silver'))).not.toContain('album_photos');
  });

  test('does not delete the volume of a project while another container uses it', { timeout: 120_000 }, async () => {
    const containerWords = ['--name', 'outside', '--volume-driver', 'stowage', 'busybox'];
    const createWords = (volume: string): readonly string[] => containerWords.toSpliced(-1, 0, '-v', `${volume}:/data`);
    onTestFinished(async () => {
      await docker('rm', '-f', 'outside');
    });
    await startUserProject();
    await docker('create', ...createWords('album_photos'));
    // Docker itself refuses to remove the volume. Compose prints the error and continues.
    expect(await composeUser('down', '-t', '0', '-v')).toContain('still in use');
    expect(await list('volume', 'ls', '-q')).toContain('album_photos');
    await docker('rm', 'outside');

    // Only Stowage knows that both names refer to the same volume.
    await docker('create', ...createWords('silver..album_photos'));
    await expect(composeUser('down', '-v')).rejects.toThrow('container outside');
    expect(await readdir(nfs.folder('silver'))).toContain('album_photos');
    await docker('rm', 'outside');
    await composeUser('down', '-v');
    expect(await readdir(nfs.folder('silver'))).not.toContain('album_photos');
  });

  test('removes Stowage and leaves nothing behind', { timeout: 120_000 }, async () => {
    // Compares paths, because the machine also has mounts of tests that run in parallel.
    const mounts = async (): Promise<readonly string[]> =>
      (await runInside(engine, 'cat', '/proc/mounts'))
        .split('\n')
        .filter((line) => / \/(var\/lib|run)\/stowage\b/.test(line));
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'last');
    await docker(...runWords('--rm', '-v', 'last:/data', 'busybox', 'touch', '/data/file'));
    expect(await keepers()).toHaveLength(1);
    expect(await mounts()).not.toEqual([]);
    await docker('volume', 'rm', 'last');
    expect(await list('volume', 'ls', '-q')).toEqual([]);
    await composeStowage(['down']);
    await eventually(
      () => list('ps', '-aq'),
      (left) => left.length === 0,
    );
    expect(await mounts()).toEqual([]);
    expect(await readdir(engine.plugins)).toEqual([]);
    expect(await runInside(engine, 'find', '/run/stowage', '-maxdepth', '1', '-type', 's')).toBe('');
    expect(await list('network', 'ls', '--format', '{{.Name}}')).toEqual(['bridge', 'host', 'none']);
    await runInside(engine, 'sh', '-c', documentedCommand('## Uninstall', 'rm -r '));
  });
});
