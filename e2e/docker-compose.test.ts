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
import { runInside } from '#testbed/machine.ts';
import { needs } from '#testbed/needs.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { appendLinesScript } from './docker-fixture.ts';
import { ganeshaIn, type ServerInside, untilAnswering } from './stowage-container.ts';

const guide = (): string => readFileSync(join(repository, 'docs', 'docker.md'), 'utf8');

/** The user's compose file in the guide. */
const documentedProject = (): string =>
  /^### docker compose$.*?^```yaml$\n(.*?)^```$/ms.exec(guide())?.[1] ?? expect.fail('no compose file in the guide');

/** The command that begins with `start`, below a heading of the guide. */
function documentedCommand(heading: string, start: string): string {
  const lines = guide().split('\n');
  const at = lines.indexOf(heading);
  if (at === -1) expect.fail(`${heading} is not in the guide`);
  const below = lines.slice(at);
  return below.find((line) => line.startsWith(start)) ?? expect.fail(`${start} is not in the guide`);
}

const nextImage = 'stowage:next';
const required = ['root', 'docker', 'compose', 'busybox', 'mount', 'fuse', 'ganesha', 'firewall'] as const;

describe.skipIf(needs(...required))('docker compose', () => {
  const end = new AbortController();
  const all = new AsyncDisposableStack();
  const { signal } = end;
  let engine: Engine;
  let nfs: ServerInside;
  let album: string;

  const docker = (...words: readonly string[]): Promise<string> => engine.docker(...words);
  const stowage = (...words: readonly string[]): Promise<string> => docker('exec', 'stowage', 'stowage', ...words);
  const ofStowage = (words: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<string> =>
    dockerCompose(engine, repository, ['-f', 'deploy/compose.yaml', ...words], { env, signal });
  const ofUser = (...words: readonly string[]): Promise<string> => dockerCompose(engine, album, words, { signal });
  const upOfUser = async (): Promise<string> => {
    onTestFinished(async () => {
      await ofUser('down', '-t', '0', '-v');
    });
    return await ofUser('up', '-d');
  };
  const inspect = async (what: string, field: string): Promise<unknown> =>
    JSON.parse(await docker('inspect', '--format', `{{json ${field}}}`, what));
  const list = async (...words: readonly string[]): Promise<readonly string[]> =>
    (await docker(...words)).split('\n').filter(Boolean).toSorted();
  const keepers = (): Promise<readonly string[]> =>
    list('ps', '-q', '--no-trunc', '--filter', 'label=stowage.dev/keeper');
  const inRun = (...words: readonly string[]): readonly string[] => ['run', '--network', 'none', ...words];
  const logged = (volume: string): readonly string[] =>
    readFileSync(join(nfs.folder('silver'), volume, 'log'), 'utf8')
      .split('\n')
      .slice(0, -1);

  beforeAll(async () => {
    const tar = await buildImage(signal);
    // The engine also listens on the socket that compose.yaml names.
    engine = all.use(await startDockerd(signal, { bridges: true, args: ['--host', 'unix:///run/docker.sock'] }));
    nfs = all.use(await ganeshaIn(engine, [{ tag: 'silver' }], signal));
    await docker('load', '--quiet', '--input', tar);
    await docker('tag', await loadBusybox(engine, signal), 'busybox');
    await docker('tag', imageName, 'stowage');
    // A new version of Stowage is a new image.
    const made = await docker('create', imageName);
    await docker('commit', '--change', 'LABEL org.opencontainers.image.version=next', made, nextImage);
    await docker('rm', '-v', made);
    const top = await mkdtemp(join(tmpdir(), 'stowage-compose-'));
    all.defer(() => rm(top, { recursive: true }));
    // Compose names a project after its folder.
    album = join(top, 'album');
    await mkdir(album);
    await writeFile(join(album, 'compose.yaml'), documentedProject());
    for (const start of ['install ', 'mkdir '])
      await runInside(engine, 'sh', '-c', documentedCommand('### docker compose', start));
    await ofStowage(['up', '-d']);
    await untilAnswering(engine);
    await stowage('store', 'add', 'silver', nfs.uri('silver'));
  }, 300_000);
  afterAll(async () => {
    await all.disposeAsync();
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
    const using = inRun('--rm', '-v', 'first:/data', 'busybox');
    await docker(...using, 'sh', '-c', 'echo hello >/data/note');
    expect(await docker(...using, 'cat', '/data/note')).toBe('hello');
    expect(readFileSync(join(nfs.folder('silver'), 'first', 'note'), 'utf8')).toBe('hello\n');
  });

  test('replaces Stowage while a container writes to a volume', { timeout: 180_000 }, async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'busy');
    await docker(...inRun('-d', '--name', 'writer', '-v', 'busy:/data', 'busybox', 'sh', '-c', appendLinesScript));
    onTestFinished(async () => {
      await docker('rm', '-f', 'writer');
      await docker('volume', 'rm', 'busy');
    });
    /** The container keeps writing after the disturbance. */
    const keepsWriting = async (disturb: () => Promise<unknown>): Promise<void> => {
      await disturb();
      const before = logged('busy').length;
      await eventually(
        () => logged('busy').length,
        (now) => now > before,
      );
    };
    await eventually(
      () => docker('exec', 'writer', 'ls', '/data'),
      (said) => said === 'log',
    );
    const [kept, old] = [await keepers(), await inspect('stowage', '.Id')];
    expect(kept).toHaveLength(1);
    const replaced = async (image: string): Promise<void> => {
      await ofStowage(['up', '-d'], { STOWAGE_IMAGE: image });
      await untilAnswering(engine);
      expect(await inspect('stowage', '.Config.Image')).toBe(image);
    };
    await keepsWriting(() => replaced(nextImage));
    expect([await inspect('stowage', '.Id'), await keepers()]).toEqual([expect.not.stringMatching(`${old}`), kept]);
    await expect(stowage('volume', 'delete', 'silver/busy')).rejects.toThrow('container writer');

    // The commands for users who don't want to replace Stowage while containers run.
    await keepsWriting(() => ofStowage(['down']));
    await keepsWriting(() => replaced('stowage'));
    expect(await keepers()).toEqual(kept);

    await docker(...inRun('--rm', '-v', 'busy:/data', 'busybox', 'touch', '/data/stop'));
    expect(await docker('wait', 'writer')).toBe('0');
    expect(logged('busy')).toEqual(logged('busy').map((_, i) => `line ${i + 1}`));
  });

  test('creates the volume of a project, shares it between services, and keeps it', { timeout: 120_000 }, async () => {
    await upOfUser();
    await eventually(
      () => ofUser('logs', 'viewer'),
      (said) => /UTC \d{4}$/m.test(said),
    );
    expect(await inspect('album_photos', '.Driver')).toBe('stowage');
    expect(await stowage('volume', 'show', 'silver/album_photos')).toMatch(/1(\.0+)? ?GiB/);
    const lines = logged('album_photos').length;
    await ofUser('down', '-t', '0');
    expect(await list('volume', 'ls', '-q')).toContain('album_photos');
    await ofUser('up', '-d');
    await eventually(
      () => logged('album_photos').length,
      (now) => now > lines,
    );
    await ofUser('down', '-t', '0', '-v');
    expect(await readdir(nfs.folder('silver'))).not.toContain('album_photos');
  });

  test('uses an existing volume, as on a second host', { timeout: 120_000 }, async () => {
    await stowage('volume', 'create', 'silver/album_photos');
    expect(await upOfUser()).toContain('was not created by Docker Compose');
    await eventually(
      () => ofUser('logs', 'viewer'),
      (said) => /UTC \d{4}$/m.test(said),
    );
    await ofUser('down', '-t', '0', '-v');
    expect(await readdir(nfs.folder('silver'))).not.toContain('album_photos');
  });

  test('does not delete the volume of a project while another container uses it', { timeout: 120_000 }, async () => {
    const outside = ['--name', 'outside', '--volume-driver', 'stowage', 'busybox'];
    const naming = (volume: string): readonly string[] => outside.toSpliced(-1, 0, '-v', `${volume}:/data`);
    onTestFinished(async () => {
      await docker('rm', '-f', 'outside');
    });
    await upOfUser();
    await docker('create', ...naming('album_photos'));
    // Docker itself refuses to remove the volume. Compose prints the error and continues.
    expect(await ofUser('down', '-t', '0', '-v')).toContain('still in use');
    expect(await list('volume', 'ls', '-q')).toContain('album_photos');
    await docker('rm', 'outside');

    // Only Stowage knows that both names mean the same volume.
    await docker('create', ...naming('silver..album_photos'));
    await expect(ofUser('down', '-v')).rejects.toThrow('container outside');
    expect(await readdir(nfs.folder('silver'))).toContain('album_photos');
    await docker('rm', 'outside');
    await ofUser('down', '-v');
    expect(await readdir(nfs.folder('silver'))).not.toContain('album_photos');
  });

  test('removes Stowage and leaves nothing behind', { timeout: 120_000 }, async () => {
    // Compares paths, because the machine also has mounts of tests that run in parallel.
    const mounts = async (): Promise<readonly string[]> =>
      (await runInside(engine, 'cat', '/proc/mounts'))
        .split('\n')
        .filter((line) => / \/(var\/lib|run)\/stowage\b/.test(line));
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'last');
    await docker(...inRun('--rm', '-v', 'last:/data', 'busybox', 'touch', '/data/file'));
    expect(await keepers()).toHaveLength(1);
    expect(await mounts()).not.toEqual([]);
    await docker('volume', 'rm', 'last');
    expect(await list('volume', 'ls', '-q')).toEqual([]);
    await ofStowage(['down']);
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
