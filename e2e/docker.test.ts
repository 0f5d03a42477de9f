import { readdirSync, readFileSync } from 'node:fs';
import { chown, mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { loadBusybox } from '#testbed/busybox.ts';
import type { TestEngine } from '#testbed/engine-machine.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { expectFailure, startEngine, suiteResources, worldReadableFolder } from './docker-fixture.ts';
import { mountsIn, pollOptions } from './nfs-mount-fixture.ts';
import { createNfsServeFixture } from './nfs-serve-fixture.ts';
import { type Stowage, startStowage } from './stowage.ts';

const volumesIn = (top: string): readonly string[] => mountsIn(top).filter((path) => path.includes('/sv1-'));
/** The data path and the tests run as different users, so the server must not map users. */
const openExport = ['--allow', '127.0.0.1', '--squash', 'none'];
/** The options for a volume that no engine created. Docker finds it through its driver. */
const volumeOf = (kind: 'docker' | 'podman', name: string): readonly string[] => [
  ...(kind === 'docker' ? ['--volume-driver', 'stowage'] : []),
  '-v',
  `${name}:/data`,
];
/** With this option a container ends at once: as process 1 it would ignore SIGTERM. */
const stopAtOnceOptions = ['--stop-signal', 'KILL'];

describe.each(['docker', 'podman'] as const)('%s', (kind) => {
  describe.skipIf(lacks(kind, 'busybox', 'mount', 'fuse', 'ganesha'))('with volumes', () => {
    let testFolder: string;
    let engine: TestEngine;
    let nfs: NfsServer;
    let exported: string;
    let stowage: Stowage;
    let image: string;
    const { all, signal } = suiteResources();
    const run = (...words: readonly string[]): Promise<string> => engine.run(...words);
    const errorOf = expectFailure(run);
    const start = () =>
      startStowage({
        state: join(testFolder, 's'),
        socket: join(testFolder, 'r', 'stowage.sock'),
        options: ['--plugins', engine.plugins, `--${kind}-socket`, engine.socket],
      });
    const usersOf = async (volume: string): Promise<readonly string[]> => {
      const { body } = await stowage.api('GET', `/v1/volumes/${volume}`);
      const uses = (body['uses'] ?? []) as readonly { users: readonly { kind: string; name: string }[] }[];
      return uses.flatMap(({ users }) => users.map((user) => `${user.kind} ${user.name}`));
    };

    beforeAll(async () => {
      testFolder = await worldReadableFolder('st-eng-', all);
      exported = await realpath(await mkdtemp(join(tmpdir(), 'st-exp-')));
      all.defer(() => rm(exported, { recursive: true, force: true }));
      nfs = all.use(await startGanesha({ exports: [{ path: exported, tag: 'silver' }], signal }));
      engine = all.use(await startEngine[kind](signal, { shared: [testFolder] }));
      image = await loadBusybox(engine, signal);
      stowage = await start();
      all.defer(() => stowage.stop());
      // After a failed test, its containers would keep their volumes mounted.
      all.defer(async () => {
        const containers = (await run('ps', '-aq')).split('\n').filter(Boolean);
        if (containers.length > 0) await run('rm', '-f', ...containers);
      });
      const { host, nfsPort, mountPort } = nfs;
      const uri = `nfs://${host}${exported}?port=${nfsPort}&mountport=${mountPort}`;
      const { status, stderr } = await stowage.cli('store', 'add', 'silver', uri);
      if (status !== 0) throw new Error(stderr);
    }, 120_000);

    test('lets two containers share a volume of an NFS store, and deletes it only when neither exists', async () => {
      expect(await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', 'photos')).toBe('photos');
      const start = (name: string) =>
        run('run', '-d', ...stopAtOnceOptions, '--name', name, '-v', 'photos:/data', image, 'sleep', '1000');
      await start('first');
      await start('second');
      await run('exec', 'first', 'touch', '/data/seen');
      expect(await run('exec', 'second', 'ls', '/data')).toBe('seen');
      await run('rm', '-f', 'second');
      // Both the engine and Stowage refuse, so neither command deletes the volume.
      expect(await errorOf('volume', 'rm', 'photos')).toMatch(/in use|being used/);
      const byName = await stowage.cli('volume', 'delete', 'silver/photos');
      expect(byName).toMatchObject({ status: 6, stderr: expect.stringContaining('container first') });
      await run('stop', '-t', '0', 'first');
      expect(await errorOf('volume', 'rm', 'photos')).toMatch(/in use|being used/);
      const stopped = await stowage.cli('volume', 'delete', 'silver/photos');
      expect(stopped).toMatchObject({ status: 6, stderr: expect.stringContaining('container first') });
      await run('rm', 'first');
      await run('volume', 'rm', 'photos');
      expect((await stowage.cli('volume', 'show', 'silver/photos')).status).toBe(4);
      await expect.poll(() => volumesIn(testFolder), pollOptions).toEqual([]);
    });

    test('creates no volume on a store that does not answer, and the error says who has to act', async () => {
      const { exported: folder, serve } = await createNfsServeFixture();
      const server = await serve();
      expect(await stowage.cli('store', 'add', 'gone', `${server.uri}&timeout=1s&retries=0`)).toMatchObject({
        status: 0,
      });
      onTestFinished(async () => void (await stowage.cli('store', 'remove', 'gone')));
      await server.end('SIGKILL');
      const since = performance.now();
      const error = await errorOf('volume', 'create', '--driver', 'stowage', '-o', 'store=gone', 'nowhere');
      expect(performance.now() - since).toBeLessThan(15_000);
      expect(error).toMatch(/store 'gone' does not answer: a network or server failure, not missing permissions/);
      expect(error).toMatch(/The administrator can find the cause with: stowage store check gone/);
      expect(error).not.toContain('permission problem');
      expect(error).not.toContain('127.0.0.1');
      expect(await run('volume', 'ls', '-q')).not.toContain('nowhere');
      expect(readdirSync(folder).filter((name) => !name.startsWith('.'))).toEqual([]);
    });

    test('reports a store whose server denies access as a permission problem, and says whom to ask', async () => {
      const folder = await realpath(await mkdtemp(join(tmpdir(), 'st-denied-')));
      onTestFinished(() => rm(folder, { recursive: true, force: true }));
      const share: { path: string; tag: string; onlyFor: string | undefined } = {
        path: folder,
        tag: 'denied',
        onlyFor: undefined,
      };
      const server = await startGanesha({ exports: [share], signal });
      onTestFinished(() => server[Symbol.asyncDispose]());
      const uri = `nfs://${server.host}${folder}?port=${server.nfsPort}&mountport=${server.mountPort}&timeout=5s&retries=1`;
      expect(await stowage.cli('store', 'add', 'denied', uri)).toMatchObject({ status: 0 });
      onTestFinished(async () => void (await stowage.cli('store', 'remove', 'denied')));
      const create = ['volume', 'create', '--driver', 'stowage', '-o', 'store=denied'];
      await run(...create, 'before');
      share.onlyFor = '192.0.2.1';
      await server.restart();
      const permission = 'a permission problem, not a network problem';
      const hidden = `the server of store 'denied' does not export the store's directory to this host: most likely it does not allow this host, which is ${permission}`;
      const ask =
        'Ask the administrator to grant Stowage access; the reason is found in the log of Stowage on this host.';
      const expectDenied = async (why: string, ...words: readonly string[]): Promise<void> => {
        const error = await errorOf(...words);
        expect(error).toContain(`${why}. ${ask}`);
        expect(error).not.toContain(server.host);
        expect(error).not.toContain(folder);
      };
      // Once while the store is open, and once when it can't be opened.
      await expectDenied(`access to the store is denied: this is ${permission}`, ...create, 'during');
      await stowage.stop();
      stowage = await start();
      await expectDenied(hidden, ...create, 'after');
      await expectDenied(hidden, 'run', '--rm', '-v', 'before:/data', image, 'true');
      if (kind === 'docker')
        expect(JSON.parse(await run('volume', 'inspect', 'before'))[0].Status.health).toContain(permission);
      expect(readdirSync(folder).filter((name) => !name.startsWith('.'))).toEqual(['before', 'before.meta']);
      share.onlyFor = undefined;
      await server.restart();
      await expect
        .poll(() => run('run', '--rm', '-v', 'before:/data', image, 'echo', 'granted').catch(String), {
          interval: 1_000,
          timeout: 120_000,
        })
        .toBe('granted');
      await run('volume', 'rm', 'before');
    }, 240_000);

    test('reports a store whose server allows only other hosts as a permission problem', async () => {
      const { exported: folder, serve } = await createNfsServeFixture();
      const first = await serve();
      const uri = `${first.uri}&timeout=2s&retries=0`;
      expect(await stowage.cli('store', 'add', 'closed', uri)).toMatchObject({ status: 0 });
      onTestFinished(async () => void (await stowage.cli('store', 'remove', 'closed')));
      await first.end('SIGKILL');
      await serve(['--port', String(first.port), '--allow', '192.0.2.0/24']);
      const create = ['volume', 'create', '--driver', 'stowage', '-o', 'store=closed', 'nowhere'];
      const permission =
        "the server of store 'closed' ends every connection from this host at once: most likely it does not allow this host, which is a permission problem, not a network problem";
      const ask = 'Ask the administrator to grant Stowage access; the reason is found';
      expect(await errorOf(...create)).toContain(`${permission}. ${ask} with: stowage store check closed`);
      await stowage.stop();
      stowage = await start();
      const error = await errorOf(...create);
      expect(error).toContain(`${permission}. ${ask} in the log of Stowage on this host.`);
      expect(error).not.toContain('127.0.0.1');
      expect(readdirSync(folder).filter((name) => !name.startsWith('.'))).toEqual([]);
    }, 240_000);

    test('requires users to name only the store, and reveals nothing else about the store', async () => {
      const error = await errorOf('volume', 'create', '--driver', 'stowage', '-o', 'device=:/export', 'x');
      expect(error).toMatch(/can be set only on the store, by the administrator/);
      expect(error).toMatch(/-o store=NAME/);
      await run('volume', 'create', '--driver', 'stowage', '-o', 'size=1G', '-o', 'label.team=blue', 'sized');
      onTestFinished(async () => void (await run('volume', 'rm', 'sized')));
      const output = await run('volume', 'inspect', 'sized');
      expect(output).not.toContain(nfs.host);
      expect(output).not.toContain(exported);
      if (kind === 'docker')
        expect(JSON.parse(output)[0]).toMatchObject({ Scope: 'global', Status: { store: 'silver', size: '1GiB' } });
    });

    test('uses the default store, which is on NFS, when no store is given', async () => {
      const { exported: folder, serve } = await createNfsServeFixture();
      const { uri } = await serve(openExport);
      expect(await stowage.cli('store', 'add', 'usual', uri)).toMatchObject({ status: 0 });
      onTestFinished(async () => void (await stowage.cli('store', 'remove', 'usual')));
      // With two stores, Stowage needs a default store.
      expect(await errorOf('volume', 'create', '--driver', 'stowage', 'unnamed')).toMatch(/-o store=NAME/);
      expect(await stowage.cli('store', 'default', 'usual')).toMatchObject({ status: 0 });
      onTestFinished(async () => void (await stowage.cli('store', 'default', 'local')));
      await run('volume', 'create', '--driver', 'stowage', 'unnamed');
      onTestFinished(async () => void (await run('volume', 'rm', 'unnamed')));
      await run('run', '--rm', '-v', 'unnamed:/data', image, 'sh', '-c', 'echo text > /data/file');
      expect(readFileSync(join(folder, 'unnamed', 'file'), 'utf8')).toBe('text\n');
      if (kind === 'docker')
        expect(JSON.parse(await run('volume', 'inspect', 'unnamed'))[0]).toMatchObject({
          Status: { store: 'usual', health: 'ok', network: 'host' },
        });
      await expect.poll(() => volumesIn(testFolder), pollOptions).toEqual([]);
    });

    test('lets containers read existing volumes of a read-only NFS store, but not write, create or delete any', async () => {
      const { exported: folder, serve } = await createNfsServeFixture();
      await mkdir(join(folder, 'maps'));
      await writeFile(join(folder, 'maps', 'file'), 'text\n');
      const { uri } = await serve([...openExport, '--read-only']);
      expect(await stowage.cli('store', 'add', 'atlas', `${uri}&readOnly=true`)).toMatchObject({ status: 0 });
      onTestFinished(async () => void (await stowage.cli('store', 'remove', 'atlas')));
      const name = 'atlas..maps';
      // Podman uses only volumes that were created with `podman volume create`.
      if (kind === 'podman') await run('volume', 'create', '--driver', 'stowage', name);
      const use = (script: string): Promise<string> =>
        run('run', '--rm', ...volumeOf(kind, name), image, 'sh', '-c', script);
      expect(await use('cat /data/file')).toBe('text');
      for (const script of ['touch /data/new', 'echo more >> /data/file', 'rm /data/file'])
        await expect(use(script)).rejects.toThrow('Read-only file system');
      expect(await errorOf('volume', 'create', '--driver', 'stowage', '-o', 'store=atlas', 'new')).toMatch(/read-only/);
      expect(await errorOf('volume', 'rm', name)).toMatch(/read-only/);
      expect(readdirSync(folder)).toEqual(['maps']);
      expect(readFileSync(join(folder, 'maps', 'file'), 'utf8')).toBe('text\n');
      await expect.poll(() => volumesIn(testFolder), pollOptions).toEqual([]);
    });

    test.each(['SIGKILL', 'SIGSTOP'] as const)(
      'reports why a stopped container does not start while the server is down (%s), and starts it when the server is back',
      { timeout: 180_000 },
      async (signalName) => {
        const { serve } = await createNfsServeFixture();
        const server = await serve(openExport);
        const options = '&timeout=2s&retries=0';
        expect(await stowage.cli('store', 'add', 'away', `${server.uri}${options}`)).toMatchObject({ status: 0 });
        onTestFinished(async () => void (await stowage.cli('store', 'remove', 'away')));
        onTestFinished(async () => void (await run('rm', '-f', 'cold').catch(() => undefined)));
        await run('volume', 'create', '--driver', 'stowage', '-o', 'store=away', 'cold');
        await run('run', '-d', ...stopAtOnceOptions, '--name', 'cold', '-v', 'cold:/data', image, 'sleep', '1000');
        await run('exec', 'cold', 'sh', '-c', 'echo before > /data/file');
        await run('stop', '-t', '0', 'cold');
        await expect.poll(() => volumesIn(testFolder), pollOptions).toEqual([]);
        if (signalName === 'SIGKILL') await server.end(signalName);
        else server.child.kill(signalName);
        const error = await errorOf('start', 'cold');
        expect(error).toMatch(/does not answer|did not answer in time|network or server failure/);
        expect(error).not.toContain('permission problem');
        expect(error).not.toContain('127.0.0.1');
        expect(await run('inspect', '-f', '{{.State.Running}}', 'cold')).toBe('false');
        if (signalName === 'SIGKILL') await serve([...openExport, '--port', String(server.port)]);
        else server.child.kill('SIGCONT');
        const startContainer = () => run('start', 'cold').then(() => 'it runs', String);
        await expect.poll(startContainer, { timeout: 60_000, interval: 1_000 }).toBe('it runs');
        expect(await run('exec', 'cold', 'cat', '/data/file')).toBe('before');
        await run('rm', '-f', 'cold');
        await expect.poll(() => run('volume', 'rm', 'cold').catch(String), pollOptions).toBe('cold');
        await expect.poll(() => volumesIn(testFolder), pollOptions).toEqual([]);
      },
    );

    test('deletes a volume without a name with its container (Podman: with a command), whatever the driver', async () => {
      const anonymous = /[0-9a-f]{64}/;
      for (const driver of ['stowage', 'stowage-local']) {
        // Podman accepts a driver for an anonymous volume only when the volume is created.
        const volumeName = kind === 'podman' ? await run('volume', 'create', '--driver', driver) : undefined;
        const volume =
          volumeName === undefined ? ['--volume-driver', driver, '-v', '/data'] : ['-v', `${volumeName}:/data`];
        await run('run', '--name', 'short', ...volume, image, 'touch', '/data/here');
        expect((await stowage.cli('volume', 'list', '--json')).stdout).toMatch(anonymous);
        await run('rm', '-v', 'short');
        if (volumeName !== undefined) await run('volume', 'rm', volumeName);
        expect((await stowage.cli('volume', 'list', '--json')).stdout).not.toMatch(anonymous);
      }
      expect(volumesIn(testFolder)).toEqual([]);
    });

    test('uses volumes of this machine through the driver stowage-local', async () => {
      await run('volume', 'create', '--driver', 'stowage-local', 'here');
      onTestFinished(async () => void (await run('volume', 'rm', 'here')));
      await run('run', '--rm', '-v', 'here:/data', image, 'sh', '-c', 'echo text > /data/file');
      expect(readFileSync(join(testFolder, 's', 'stores', 'local', 'here', 'file'), 'utf8')).toBe('text\n');
      expect(await errorOf('volume', 'create', '--driver', 'stowage-local', '-o', 'store=silver', 'y')).toMatch(
        /-d stowage/,
      );
      await expect.poll(() => volumesIn(testFolder), pollOptions).toEqual([]);
    });

    test('refuses to start a container with a volume that no user can write to, and says what the administrator can do', async () => {
      const { exported: folder, serve } = await createNfsServeFixture();
      const server = await serve(['--squash', 'root', '--allow', '127.0.0.1']);
      await chown(folder, 65_534, 65_534);
      const options = `${server.uri}&squash=root&uid=65534&gid=65534`;
      expect(await stowage.cli('store', 'add', 'squashed', options)).toMatchObject({ status: 0 });
      onTestFinished(async () => void (await stowage.cli('store', 'remove', 'squashed')));
      await run('volume', 'create', '--driver', 'stowage', '-o', 'store=squashed', 'roots');
      onTestFinished(async () => void (await run('volume', 'rm', 'roots')));
      await run('run', '--rm', '-v', 'roots:/data', image, 'touch', '/data/before');
      // Podman may return before all mounts are gone, and it doesn't retry an unmount.
      await expect.poll(() => volumesIn(testFolder), pollOptions).toEqual([]);
      await chown(join(folder, 'roots'), 0, 0);
      const error = await errorOf('run', '--rm', '-v', 'roots:/data', image, 'touch', '/data/after');
      expect(error).toMatch(/no container could write to the volume: squash=root maps root to user 65534/);
      expect(error).toMatch(
        /Ask the store's administrator to make that user the owner of the directory on the server \(chown 65534\)/,
      );
      await chown(join(folder, 'roots'), 65_534, 65_534);
    });

    test('lets a container run as an ordinary user if the directory belongs to that user', async () => {
      await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', 'owned');
      onTestFinished(async () => void (await run('volume', 'rm', 'owned')));
      await run('run', '--rm', '-v', 'owned:/data', image, 'chown', '1000:1000', '/data');
      await run('run', '--rm', '--user', '1000:1000', '-v', 'owned:/data', image, 'touch', '/data/mine');
      expect(await run('run', '--rm', '-v', 'owned:/data', image, 'stat', '-c', '%u', '/data/mine')).toBe('1000');
    });

    test('lets containers keep working while Stowage is killed and restarted', async () => {
      await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', 'kept');
      await run(
        'run',
        '-d',
        '--name',
        'writer',
        '-v',
        'kept:/data',
        image,
        'sh',
        '-c',
        'while echo x >> /data/log; do sleep 0.05; done',
      );
      stowage.signal('SIGKILL');
      await stowage.ended();
      const lines = async (): Promise<number> => Number(await run('exec', 'writer', 'sh', '-c', 'wc -l < /data/log'));
      const before = await lines();
      await expect.poll(lines, pollOptions).toBeGreaterThan(before);
      stowage = await start();
      await expect.poll(lines, pollOptions).toBeGreaterThan(before + 5);
      expect(await run('inspect', '-f', '{{.State.Running}}', 'writer')).toBe('true');
      expect(volumesIn(testFolder).length).toBeGreaterThan(0);
      await expect.poll(() => usersOf('silver..kept'), pollOptions).toEqual(['container writer']);
      await run('rm', '-f', 'writer');
      await run('volume', 'rm', 'kept');
      await expect.poll(() => volumesIn(testFolder), pollOptions).toEqual([]);
    });
  });
});
