import { chown } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type Host, type RemoteNfsServer, startHost, startRemoteNfsServer, stopAtOnceOptions } from './docker-hosts.ts';
import { runCli } from './nfs-mount-fixture.ts';

describe.skipIf(lacks('docker', 'busybox', 'mount', 'fuse', 'ganesha', 'netns'))('Docker that remaps users', () => {
  let server: RemoteNfsServer;
  let host: Host;
  const abort = new AbortController();
  const resources = new AsyncDisposableStack();
  const runWordsAs = (user: string, volume: string, ...words: readonly string[]): readonly string[] => [
    'run',
    '--rm',
    ...stopAtOnceOptions,
    '--user',
    user,
    '-v',
    `${volume}:/data`,
    host.image,
    ...words,
  ];
  const runWordsAsRoot = (volume: string, ...words: readonly string[]): readonly string[] =>
    runWordsAs('0:0', volume, ...words);

  beforeAll(async () => {
    server = resources.use(await startRemoteNfsServer([{ tag: 'silver' }, { tag: 'flat' }], abort.signal));
    host = resources.use(await startHost('one', server, abort.signal, { args: ['--userns-remap', 'default'] }));
    await runCli(host.stowage, 'store', 'add', 'silver', server.uri('silver'));
    await chown(server.folder('flat'), 65_534, 65_534);
    await runCli(host.stowage, 'store', 'add', 'flat', `${server.uri('flat')}&squash=all`);
  }, 120_000);
  afterAll(async () => {
    await resources.disposeAsync();
    abort.abort();
  }, 60_000);

  test.each([
    ['stowage', 'silver'],
    ['stowage-local', 'local'],
  ])('cannot use a volume of driver %s: the error names the reason and the alternatives', async (driver, store) => {
    await host.docker('volume', 'create', '-d', driver, '-o', `store=${store}`, `of-${store}`);
    const error = await host.errorOf(...runWordsAsRoot(`of-${store}`, 'true'));
    expect(error).toContain('remaps users');
    expect(error).toContain('without userns-remap');
    expect(error).toContain('squash=all');
    expect(await host.mounts()).toEqual([]);
    await host.docker('volume', 'rm', `of-${store}`);
  });

  test('can use volumes of a store whose files all belong to one user, whatever user the container runs as', async () => {
    await host.docker('volume', 'create', '-d', 'stowage', '-o', 'store=flat', 'shared');
    // Root in the container is an ordinary user on this machine.
    expect(await host.docker(...runWordsAsRoot('shared', 'cat', '/proc/self/uid_map'))).not.toMatch(/^\s*0\s+0\s/);
    const script = `umask 077; mkdir /data/$1; cd /data/$1
      echo 'echo it runs' >script; cat script; chmod 700 script; ./script; mv script moved; ls`;
    const expectedOutput = 'echo it runs\nit runs\nmoved';
    expect(await host.docker(...runWordsAsRoot('shared', 'sh', '-ec', script, 'sh', 'root'))).toBe(expectedOutput);
    expect(await host.docker(...runWordsAs('1000:1000', 'shared', 'sh', '-ec', script, 'sh', 'user'))).toBe(
      expectedOutput,
    );
    // Each container can also run and remove the files that the other one created.
    const useFilesOf = (name: string): readonly string[] => ['sh', '-ec', `/data/${name}/moved; rm -r /data/${name}`];
    expect(await host.docker(...runWordsAsRoot('shared', ...useFilesOf('user')))).toBe('it runs');
    expect(await host.docker(...runWordsAs('1000:1000', 'shared', ...useFilesOf('root')))).toBe('it runs');
    await host.docker('volume', 'rm', 'shared');
    expect(await host.mounts()).toEqual([]);
  });

  test('can use volumes of such a store after their mounts were replaced', async () => {
    await host.docker('volume', 'create', '-d', 'stowage', '-o', 'store=flat', 'again');
    await host.startIdleContainer('holding', 'again');
    await host.docker('exec', 'holding', 'sh', '-ec', 'umask 077; echo text >/data/file');
    // A running Stowage would replace the mounts during the test.
    host.stowage.signal('SIGKILL');
    await host.stowage.ended();
    await host.dropMounts();
    await host.start();
    expect(
      await host.docker(...runWordsAs('1000:1000', 'again', 'sh', '-ec', 'cat /data/file; echo more >>/data/file')),
    ).toBe('text');
    await host.docker('rm', '-f', 'holding');
    expect(await host.docker(...runWordsAsRoot('again', 'cat', '/data/file'))).toBe('text\nmore');
    await host.docker('volume', 'rm', 'again');
    expect(await host.mounts()).toEqual([]);
  });
});
