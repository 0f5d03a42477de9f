import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { suiteResources } from './docker-fixture.ts';
import { type Host, type RemoteNfsServer, startHost, startRemoteNfsServer } from './docker-hosts.ts';
import { pollOptions, runCli } from './nfs-mount-fixture.ts';

/** Two machines, each with its own Docker engine and Stowage, and an NFS server that both reach over the network. */
describe.skipIf(lacks('docker', 'busybox', 'mount', 'fuse', 'ganesha', 'netns'))('Docker on two hosts', () => {
  let server: RemoteNfsServer;
  let one: Host;
  let two: Host;
  const { all, signal } = suiteResources();
  const create = (host: Host, volume: string): Promise<string> =>
    host.docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', volume);
  const inUse = (by: string) => ({ status: 6, stderr: expect.stringContaining(by) });
  const destroy = (host: Host, volume: string) => host.stowage.cli('volume', 'delete', `silver/${volume}`);

  beforeAll(async () => {
    server = all.use(await startRemoteNfsServer([{ tag: 'silver' }], signal));
    [one, two] = await Promise.all([startHost('one', server, signal), startHost('two', server, signal)]);
    all.use(one);
    all.use(two);
    for (const host of [one, two]) await runCli(host.stowage, 'store', 'add', 'silver', server.uri('silver'));
  }, 120_000);

  test('shares a volume, and deletes it only when no container on either host references it', async () => {
    await create(one, 'photos');
    const [inspected] = JSON.parse(await two.docker('volume', 'inspect', 'photos'));
    expect(inspected).toMatchObject({ Driver: 'stowage', Scope: 'global', Status: { store: 'silver' } });
    await one.startIdleContainer('first', 'photos');
    await two.docker('run', '-d', '--name', 'second', '-v', 'photos:/data', two.image, 'sleep', '1000');
    await one.docker('exec', 'first', 'sh', '-c', 'echo seen >/data/file');
    expect(await two.docker('exec', 'second', 'cat', '/data/file')).toBe('seen');
    await expect
      .poll(() => two.recordedUsers('silver..photos'), pollOptions)
      .toEqual(['one: container first', 'two: container second']);

    await two.docker('rm', '-f', 'second');
    await expect.poll(() => one.recordedUsers('silver..photos'), pollOptions).toEqual(['one: container first']);
    expect(await one.errorOf('volume', 'rm', 'photos')).toMatch(/in use/);
    expect(await destroy(one, 'photos')).toMatchObject(inUse('container first'));
    // Docker on that host knows no container with the volume. Stowage refuses, and names the host that uses the volume.
    const error = await two.errorOf('volume', 'rm', 'photos');
    expect(error).toContain('container first');
    expect(error).toMatch(/\bone\b/);
    expect(await destroy(two, 'photos')).toMatchObject(inUse('container first'));

    await one.docker('stop', 'first');
    // The volume is not mounted any longer, but the stopped container still uses it.
    await expect.poll(() => one.mounts(), pollOptions).toEqual([]);
    await expect.poll(() => two.recordedUsers('silver..photos'), pollOptions).toEqual(['one: container first']);
    for (const host of [one, two]) expect(await destroy(host, 'photos')).toMatchObject(inUse('container first'));
    expect(await two.errorOf('volume', 'rm', 'photos')).toContain('container first');

    await one.docker('rm', 'first');
    await expect.poll(() => two.recordedUsers('silver..photos'), pollOptions).toEqual([]);
    await two.docker('volume', 'rm', 'photos');
    await expect.poll(() => one.docker('volume', 'ls', '-q'), pollOptions).not.toContain('photos');
    expect(existsSync(join(server.folder('silver'), 'photos'))).toBe(false);
    for (const host of [one, two]) expect(await host.mounts()).toEqual([]);
  });

  test('does not delete a volume with rm -f while a container on another host uses it', async () => {
    await create(one, 'forced');
    await one.startIdleContainer('holder', 'forced');
    await one.docker('exec', 'holder', 'sh', '-c', 'echo kept >/data/file; sync');
    await expect.poll(() => two.recordedUsers('silver..forced'), pollOptions).toEqual(['one: container holder']);
    await two.docker('volume', 'inspect', 'forced');
    // Some engines report the error, others do not.
    await two.docker('volume', 'rm', '-f', 'forced').catch(() => undefined);
    expect(readFileSync(join(server.folder('silver'), 'forced', 'file'), 'utf8')).toBe('kept\n');
    expect(await one.docker('exec', 'holder', 'cat', '/data/file')).toBe('kept');
    expect(await two.docker('volume', 'ls', '-q')).toContain('forced');
    expect(await two.docker('run', '--rm', '-v', 'forced:/data', two.image, 'cat', '/data/file')).toBe('kept');
    await one.docker('rm', '-f', 'holder');
    await expect.poll(() => two.recordedUsers('silver..forced'), pollOptions).toEqual([]);
    await two.docker('volume', 'rm', 'forced');
  });

  test('keeps the volumes of a lost host until an administrator declares the host gone', async () => {
    await create(two, 'left');
    await one.startIdleContainer('lost', 'left');
    await expect.poll(() => two.recordedUsers('silver..left'), pollOptions).toEqual(['one: container lost']);
    one.stowage.signal('SIGKILL');
    await one.stowage.ended();
    const refusal = await destroy(two, 'left');
    expect(refusal).toMatchObject(inUse('container lost'));
    expect(refusal.stderr).toMatch(/\bone\b/);
    expect(await two.errorOf('volume', 'rm', 'left')).toContain('container lost');
    const { body } = await two.stowage.api('GET', '/v1/volumes/silver..left');
    const [{ host }] = body['uses'] as [{ readonly host: string }];
    await runCli(two.stowage, 'volume', 'release', 'silver/left', '--host', host, '--yes');
    expect(await two.recordedUsers('silver..left')).toEqual([]);
    await two.docker('volume', 'rm', 'left');
    expect(existsSync(join(server.folder('silver'), 'left'))).toBe(false);
    // The lost host comes back. Its container can be removed and leaves nothing behind. Docker does not unmount the
    // volumes of the container in this case, but Stowage does in its periodic checks and at its start.
    await one.start();
    expect(await one.mounts()).not.toEqual([]);
    await one.docker('rm', '-f', 'lost');
    await one.start();
    await expect.poll(() => one.mounts(), pollOptions).toEqual([]);
    expect(await one.docker('volume', 'ls', '-q')).not.toContain('left');
  });
});
