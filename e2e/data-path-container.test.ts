import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { repository } from '#testbed/component.ts';
import { startDockerd } from '#testbed/dockerd.ts';
import { lastStage } from '#testbed/dockerfile.ts';
import { lacks } from '#testbed/lacks.ts';
import { rootfs } from '#testbed/rootfs.ts';
import { runner } from '#testbed/run.ts';
import { ganeshaFolders, portsOf } from '#testing/ganesha-folders.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { run } from '#testing/workloads.ts';
import { appendLinesScript } from './docker-fixture.ts';
import { createServerFolders, mountsIn, runCli, startTestServer, waitUntilServing } from './nfs-mount-fixture.ts';

describe.skipIf(lacks('root', 'mount', 'docker', 'fuse', 'ganesha'))(
  'a container that bind-mounts a volume itself',
  () => {
    const end = new AbortController();
    const ganesha = ganeshaFolders('container');
    let rootfsTar: string;

    beforeAll(async () => {
      const { packages } = lastStage(readFileSync(join(repository, 'deploy', 'Dockerfile'), 'utf8'));
      ({ tar: rootfsTar } = await rootfs(packages, runner(end.signal)));
    }, 300_000);
    afterAll(() => end.abort());

    test('keeps working through kills, upgrades and restarts', { timeout: 120_000 }, async () => {
      const folders = await createServerFolders();
      let server = await startTestServer(folders);
      const { folder, uri } = ganesha.fresh();
      const { port, mountport } = portsOf(ganesha.server);
      await runCli(server, 'store', 'add', 'silver', `${uri}?port=${port}&mountport=${mountport}`);
      await runCli(server, 'volume', 'create', 'silver/photos');
      const mountPoint = join(folders.top, 'mnt');
      await runCli(server, 'mount', 'silver/photos', mountPoint);
      const log = join(folder, 'photos', 'log');
      const lines = (): readonly string[] =>
        existsSync(log) ? readFileSync(log, 'utf8').split('\n').slice(0, -1) : [];
      /** The container keeps writing after the disturbance. */
      const keepsWriting = async (disturb: () => Promise<unknown>): Promise<void> => {
        const before = lines().length;
        await disturb();
        await eventually(
          () => lines().length,
          (count) => count > before,
        );
      };
      const killDataPath = async (): Promise<void> =>
        void process.kill((await waitUntilServing(server)).pid, 'SIGKILL');

      // The engine's mount namespace is private, so it sees only mounts that existed before it started.
      await using engine = await startDockerd(end.signal);
      await engine.docker('import', rootfsTar, 'plain');
      const runOptions = ['--network', 'none', '-v', `${mountPoint}:/data`];
      const id = await engine.docker('run', '-d', ...runOptions, 'plain', 'sh', '-c', appendLinesScript);
      await keepsWriting(() => Promise.resolve());
      for (let i = 0; i < 2; i++) {
        await keepsWriting(killDataPath);
        // The upgrade replaces both the keeper and the data path.
        await keepsWriting(() => runCli(server, 'client', 'upgrade'));
      }
      await keepsWriting(async () => {
        server.signal('SIGKILL');
        await server.ended();
      });
      await keepsWriting(async () => {
        server = await startTestServer(folders);
      });
      await keepsWriting(killDataPath);
      await run('touch', [join(mountPoint, 'stop')]);
      expect(await engine.docker('wait', id)).toBe('0');
      expect(lines()).toEqual(lines().map((_, i) => `line ${i + 1}`));
      await engine.docker('rm', id);
      await runCli(server, 'unmount', mountPoint);
      expect(mountsIn(folders.top)).toEqual([]);
    });
  },
);
