import { mkdir, mkdtemp, readFile, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { loadBusybox } from '#testbed/busybox.ts';
import type { EarlierCommit } from '#testbed/earlier-commit.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { appendLinesScript, startEngine, suiteResources, worldReadableFolder } from '../docker-fixture.ts';
import { dataPath, killKeepers, mountsIn, pollOptions, runCli, startWriter } from '../nfs-mount-fixture.ts';
import { run, type Stowage, startStowage } from '../stowage.ts';
import { checkOutEarlierVersion } from './earlier-version.ts';

const stores = ['files', 'images', 'remote'] as const;
const driverOf = { files: 'stowage-local', images: 'stowage-local', remote: 'stowage' } as const;
const components = ['busybox', 'mount', 'fuse', 'ganesha', 'loop', 'xfs'] as const;

/** Each line of the kernel's mount table has a number of the mount, which changes if the volume is mounted again. */
const mountTable = async (top: string): Promise<readonly string[]> =>
  (await readFile('/proc/self/mountinfo', 'utf8'))
    .split('\n')
    .filter((line) => line.includes(` ${top}/`))
    .toSorted();

describe.each(['docker', 'podman'] as const)('an upgrade from an earlier version, with %s', (kind) => {
  describe.skipIf(lacks(kind, ...components))('while volumes of all store kinds are in use', () => {
    const { all, signal } = suiteResources();
    let earlier: EarlierCommit;

    beforeAll(async () => {
      earlier = all.use(await checkOutEarlierVersion(signal));
    }, 300_000);

    test.each(['SIGTERM', 'SIGKILL'] as const)(
      'does not disturb applications and containers (the earlier version ends by %s)',
      { timeout: 600_000 },
      async (signalName) => {
        await using stack = new AsyncDisposableStack();
        const top = await worldReadableFolder('st-upg-', stack);
        // For a failed test.
        stack.defer(async () => {
          for (const path of mountsIn(top)) await run('umount', ['--force', '--lazy', path]);
          killKeepers(top);
        });
        const exported = await realpath(await mkdtemp(join(tmpdir(), 'st-exp-')));
        stack.defer(() => rm(exported, { recursive: true, force: true }));
        const nfs = stack.use(await startGanesha({ exports: [{ path: exported, tag: 'remote' }], signal }));
        const engine = stack.use(await startEngine[kind](signal, { shared: [top] }));
        const image = await loadBusybox(engine, signal);
        const serverOptions = {
          state: join(top, 's'),
          socket: join(top, 'r', 'stowage.sock'),
          options: ['--plugins', engine.plugins, `--${kind}-socket`, engine.socket],
        };
        let server: Stowage = await startStowage({ ...serverOptions, command: [join(earlier.path, 'bin', 'stowage')] });
        stack.defer(() => server.stop());
        stack.defer(async () => {
          const containers = (await engine.run('ps', '-aq')).split('\n').filter(Boolean);
          if (containers.length > 0) await engine.run('rm', '-f', ...containers);
        });

        for (const folder of ['files', 'images', 'mounted']) await mkdir(join(top, folder));
        await runCli(server, 'store', 'add', 'files', `local://${join(top, 'files')}`);
        await runCli(server, 'store', 'add', 'images', `local://${join(top, 'images')}?layout=image&onDelete=archive`);
        const ports = `port=${nfs.nfsPort}&mountport=${nfs.mountPort}`;
        await runCli(server, 'store', 'add', 'remote', `nfs://${nfs.host}${exported}?${ports}`);
        const mountPointOf = (store: string): string => join(top, 'mounted', store);
        const create = (volume: string): Promise<string> =>
          runCli(server, 'volume', 'create', volume, ...(volume.startsWith('images/') ? ['--size', '64M'] : []));
        const writers = new Map<string, ReturnType<typeof startWriter>>();
        for (const store of stores) {
          await create(`${store}/mounted`);
          await runCli(server, 'mount', `${store}/mounted`, mountPointOf(store));
          writers.set(store, startWriter(join(mountPointOf(store), 'log')));
          const size = store === 'images' ? ['-o', 'size=64M'] : [];
          await engine.run(
            'volume',
            'create',
            '--driver',
            driverOf[store],
            '-o',
            `store=${store}`,
            ...size,
            `${store}-data`,
          );
          const script = ['sh', '-c', appendLinesScript];
          await engine.run('run', '-d', '--name', store, '-v', `${store}-data:/data`, image, ...script);
        }
        await create('images/deleted');
        await runCli(server, 'volume', 'delete', 'images/deleted');
        const volumes = async (): Promise<unknown> =>
          JSON.parse(await runCli(server, 'volume', 'list', '--json')).map(
            ({ id, name, store }: Readonly<Record<string, string>>) => ({ id, name, store }),
          );
        const lines = async (store: string): Promise<number> =>
          Number((await engine.run('exec', store, 'tail', '-n', '1', '/data/log')).replace('line ', ''));
        const expectProgress = async (): Promise<void> => {
          for (const [store, writer] of writers) {
            const before = { mounted: writer.count(), container: await lines(store) };
            await expect.poll(() => writer.count(), pollOptions).toBeGreaterThan(before.mounted);
            await expect.poll(() => lines(store), pollOptions).toBeGreaterThan(before.container);
          }
        };
        await expectProgress();
        const before = { mounts: await mountTable(top), volumes: await volumes() };
        const served = await dataPath(server);

        server.signal(signalName);
        await server.ended();
        await expectProgress();
        server = await startStowage(serverOptions);
        await expectProgress();
        expect(await mountTable(top)).toEqual(before.mounts);
        expect(await volumes()).toEqual(before.volumes);
        expect(await dataPath(server)).toMatchObject({ pid: served?.pid, mounts: served?.mounts });
        for (const store of stores) {
          const refused = await server.cli('volume', 'delete', `${store}/${store}-data`);
          expect(refused).toMatchObject({ status: 6, stderr: expect.stringContaining(`container ${store}`) });
          expect(await server.cli('unmount', mountPointOf(store))).toMatchObject({
            status: 6,
            stderr: expect.stringContaining('it is in use'),
          });
        }

        // The data path takes over from the one of the earlier version, with its open files and requests.
        expect(await runCli(server, 'client', 'upgrade')).toContain('replaced 1 data path');
        await expectProgress();
        expect(await mountTable(top)).toEqual(before.mounts);
        expect((await dataPath(server))?.pid).not.toBe(served?.pid);

        await runCli(server, 'volume', 'restore', 'images/deleted');
        for (const store of stores) {
          const [writer, path] = [writers.get(store), join(mountPointOf(store), 'log')];
          writer?.stop();
          expect(await writer?.ended).toBe('');
          const written = (await readFile(path, 'utf8')).trim().split('\n').map(Number);
          expect(written).toEqual(written.map((_, i) => i + 1));
          await runCli(server, 'unmount', mountPointOf(store));
          // Not by `exec`: the kernel could kill touch(1) when the container's first process ends.
          await engine.run('run', '--rm', '-v', `${store}-data:/data`, image, 'touch', '/data/stop');
          expect(await engine.run('wait', store)).toBe('0');
          const script = 'rm /data/stop && cat /data/log';
          const read = ['run', '--rm', '-v', `${store}-data:/data`, image, 'sh', '-c', script];
          const log = (await engine.run(...read)).split('\n');
          expect(log).toEqual(log.map((_, i) => `line ${i + 1}`));
          await engine.run('rm', store);
          await engine.run('volume', 'rm', `${store}-data`);
          await runCli(server, 'volume', 'delete', `${store}/mounted`);
        }
        await expect.poll(() => mountsIn(top).filter((path) => path.includes('/sv1-')), pollOptions).toEqual([]);
      },
    );
  });
});
