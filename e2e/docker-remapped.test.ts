import { chown } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { atOnce, type FarServer, type Host, startFarServer, startHost } from './docker-hosts.ts';
import { succeeds } from './nfs-mounted.ts';

describe.skipIf(needs('docker', 'busybox', 'mount', 'fuse', 'ganesha', 'netns'))('Docker that remaps users', () => {
  let server: FarServer;
  let host: Host;
  const over = new AbortController();
  const all = new AsyncDisposableStack();
  const using = (volume: string, ...words: readonly string[]): readonly string[] => [
    ...['run', '--rm', ...atOnce, '-v', `${volume}:/data`, host.image, ...words],
  ];

  beforeAll(async () => {
    server = all.use(await startFarServer([{ tag: 'silver' }, { tag: 'flat' }], over.signal));
    host = all.use(await startHost('one', server, over.signal, { args: ['--userns-remap', 'default'] }));
    await succeeds(host.stowage, 'store', 'add', 'silver', server.uri('silver'));
    await chown(server.folder('flat'), 65_534, 65_534);
    await succeeds(host.stowage, 'store', 'add', 'flat', `${server.uri('flat')}&squash=all&mode=0777`);
  }, 120_000);
  afterAll(async () => {
    await all.disposeAsync();
    over.abort();
  }, 60_000);

  test.each([
    ['stowage', 'silver'],
    ['stowage-local', 'local'],
  ])('is refused a volume of driver %s, with the reason and the ways out', async (driver, store) => {
    await host.docker('volume', 'create', '-d', driver, '-o', `store=${store}`, `of-${store}`);
    const said = await host.refused(...using(`of-${store}`, 'true'));
    expect(said).toContain('remaps users');
    expect(said).toContain('without userns-remap');
    expect(said).toContain('squash=all');
    expect(await host.mounts()).toEqual([]);
    await host.docker('volume', 'rm', `of-${store}`);
  });

  test('uses volumes of a store whose files all belong to one user, where others may write', async () => {
    await host.docker('volume', 'create', '-d', 'stowage', '-o', 'store=flat', 'shared');
    // Its root is somebody else on this machine.
    expect(await host.docker(...using('shared', 'cat', '/proc/self/uid_map'))).not.toMatch(/^\s*0\s+0\s/);
    await host.docker(...using('shared', 'sh', '-c', 'echo text >/data/file'));
    expect(await host.docker(...using('shared', 'cat', '/data/file'))).toBe('text');
    await host.docker('volume', 'rm', 'shared');
    expect(await host.mounts()).toEqual([]);
  });
});
