import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { needs } from '#testbed/needs.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { place, started, succeeds } from './nfs-mount-fixture.ts';

describe.skipIf(needs('root', 'mount', 'fuse', 'ganesha'))('a volume that somebody has where nobody looks', () => {
  const exported = ganeshaFolders('served-on');

  test('is not deleted under them', async () => {
    const where = await place();
    const server = await started(where);
    const { uri, options } = exported.fresh();
    await succeeds(server, 'store', 'add', 'silver', `${uri}?${new URLSearchParams(options)}`);
    await succeeds(server, 'volume', 'create', 'silver/photos');
    const at = join(where.top, 'mnt');
    await succeeds(server, 'mount', 'silver/photos', at);
    // As containers have it: in a mount namespace of its own, at a place that hears of no unmount.
    const there = join(where.top, 'there');
    await mkdir(there);
    const own = [...slaveMounts, 'sh', '-c', 'mount --bind "$1" "$2"; echo ready; exec cat', 'sh'];
    const other = spawn('unshare', [...own, at, there], { stdio: ['pipe', 'pipe', 'inherit'] });
    onTestFinished(() => void other.kill());
    await once(other.stdout, 'data');
    await succeeds(server, 'unmount', at);
    const refused = await server.cli('volume', 'delete', 'silver/photos');
    expect(refused).toMatchObject({ status: 6, stderr: expect.stringContaining('something still uses a mount of it') });
    other.stdin.end();
    await once(other, 'exit');
    await succeeds(server, 'volume', 'delete', 'silver/photos');
  });
});
