import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { createServerFolders, runCli, startTestServer } from './nfs-mount-fixture.ts';

describe.skipIf(lacks('root', 'mount', 'fuse', 'ganesha'))(
  'a volume that another mount namespace still has mounted',
  () => {
    const exported = ganeshaFolders('served-on');

    test('is not deleted while it is mounted there', async () => {
      const folders = await createServerFolders();
      const server = await startTestServer(folders);
      const { uri, options } = exported.fresh();
      await runCli(server, 'store', 'add', 'silver', `${uri}?${new URLSearchParams(options)}`);
      await runCli(server, 'volume', 'create', 'silver/photos');
      const mountPoint = join(folders.top, 'mnt');
      await runCli(server, 'mount', 'silver/photos', mountPoint);
      // A mount namespace in which unmounts don't propagate, as in a container.
      const boundPath = join(folders.top, 'there');
      await mkdir(boundPath);
      const unshareArgs = [...slaveMounts, 'sh', '-c', 'mount --bind "$1" "$2"; echo ready; exec cat', 'sh'];
      const holder = spawn('unshare', [...unshareArgs, mountPoint, boundPath], { stdio: ['pipe', 'pipe', 'inherit'] });
      onTestFinished(() => void holder.kill());
      await once(holder.stdout, 'data');
      await runCli(server, 'unmount', mountPoint);
      const refused = await server.cli('volume', 'delete', 'silver/photos');
      expect(refused).toMatchObject({
        status: 6,
        stderr: expect.stringContaining('a process still uses an old mount of it'),
      });
      holder.stdin.end();
      await once(holder, 'exit');
      await runCli(server, 'volume', 'delete', 'silver/photos');
    });
  },
);
