import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { loadBusybox } from '#testbed/busybox.ts';
import type { TestEngine } from '#testbed/engine-machine.ts';
import { lacks } from '#testbed/lacks.ts';
import { runInside } from '#testbed/machine.ts';
import { expectFailure, startEngine, suiteResources, worldReadableFolder } from './docker-fixture.ts';
import { killKeepers, pollOptions } from './nfs-mount-fixture.ts';
import { type StorageNetwork, startStorageNetwork, storageHost, storagePort } from './storage-network.ts';
import { type CommandResult, program, run as runProgram, type Stowage, startStowage } from './stowage.ts';

/** Maintenance runs every 30 seconds, and takes longer while a server does not answer. */
const maintenancePoll = { timeout: 60_000, interval: 500 };

interface Step {
  readonly step: string;
  readonly ok: boolean;
  readonly detail: string;
  readonly action: string | null;
}

describe.each(['docker', 'podman'] as const)('%s', (kind) => {
  describe.skipIf(lacks('root', kind, 'busybox', 'mount', 'fuse', 'firewall'))(
    'a store in a network of the engine',
    () => {
      let testFolder: string;
      let engine: TestEngine;
      let storage: StorageNetwork;
      let stowage: Stowage;
      let image: string;
      const { all, signal } = suiteResources();
      const run = (...words: readonly string[]): Promise<string> => engine.run(...words);
      const errorOf = expectFailure(run);
      const runStowage = async (...words: string[]): Promise<string> => {
        const { status, stdout, stderr } = await stowage.cli(...words);
        expect(status, `${words.join(' ')}: ${stderr}`).toBe(0);
        return stdout;
      };
      /** The containers that keep a network namespace alive; by default, the containers for the store's network. */
      const anchors = async (label = `stowage.dev/anchor=${kind}:storage`): Promise<readonly string[]> =>
        (await run('ps', '--all', '--quiet', '--filter', `label=${label}`)).split('\n').filter(Boolean);
      /** Tries to connect to the server's port, and prints "reached" on success. */
      const connectScript = `timeout 3 nc -w 2 ${storageHost} ${storagePort} < /dev/null && echo reached || echo not reached`;
      const tryToConnect = (network: string): Promise<string> =>
        run('run', '--rm', '--network', network, image, 'sh', '-c', connectScript);
      const check = async (...words: string[]): Promise<CommandResult & { steps: readonly Step[]; last: Step }> => {
        const result = await stowage.cli('--json', 'store', 'check', ...words);
        const { steps } = JSON.parse(result.stdout) as { readonly steps: readonly Step[] };
        return { ...result, steps, last: steps.at(-1) ?? expect.fail(result.stderr) };
      };

      const start = (): Promise<Stowage> =>
        startStowage({
          state: join(testFolder, 's'),
          socket: join(testFolder, 'r', 'stowage.sock'),
          config: join(testFolder, 'stowage.yaml'),
          listen: '127.0.0.1:7878',
          command: [...engine.beside, program],
          options: ['--plugins', engine.plugins, `--${kind}-socket`, engine.socket],
        });

      beforeAll(async () => {
        testFolder = await worldReadableFolder('st-net-', all);
        engine = all.use(await startEngine[kind](signal, { bridges: true }));
        all.defer(() => killKeepers(testFolder));
        storage = all.use(await startStorageNetwork(engine, signal));
        await run('network', 'create', 'apps');
        image = await loadBusybox(engine, signal);
        const config = { stores: { plain: { uri: `${storage.uri('plain')}&timeout=2s&retries=0` } } };
        writeFileSync(join(testFolder, 'stowage.yaml'), JSON.stringify(config));
        stowage = await start();
        all.defer(() => stowage.stop());
        await runStowage('store', 'add', 'silver', `${storage.uri('silver')}&network=${kind}:storage`);
      }, 120_000);

      test('has a server that neither the host nor applications can reach', async () => {
        expect(await tryToConnect('storage')).toBe('reached');
        expect(await tryToConnect('apps')).toBe('not reached');
        expect(await runInside(engine, 'busybox', 'sh', '-c', connectScript)).toBe('not reached');
      });

      test('provides volumes to containers that have no route to the server', async () => {
        await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', 'photos');
        const use = (network: string, script: string): Promise<string> =>
          run('run', '--rm', '--network', network, '-v', 'photos:/data', image, 'sh', '-c', script);
        await use('apps', 'echo from apps > /data/file');
        expect(readFileSync(join(storage.exported, 'silver', 'photos', 'file'), 'utf8')).toBe('from apps\n');
        expect(await use('none', 'ip route; cat /data/file')).toBe('from apps');
        expect(await use('apps', connectScript)).toBe('not reached');
        expect(await anchors()).toHaveLength(1);
        if (kind === 'docker')
          expect(JSON.parse(await run('volume', 'inspect', 'photos'))[0]).toMatchObject({
            Status: { store: 'silver', network: 'docker:storage' },
          });
        expect(await runStowage('store', 'list')).toContain(`${kind}:storage`);
        await run('volume', 'rm', 'photos');
      });

      test('cannot be opened from outside that network, and the error says what to do', async () => {
        const error = await errorOf('volume', 'create', '--driver', 'stowage', '-o', 'store=plain', 'x');
        expect(error).toMatch(/network/);
        expect(error).toMatch(/administrator/);
        expect(error).not.toContain(storageHost);
        const { status, last } = await check('plain');
        expect(status).toBe(1);
        expect(last).toMatchObject({ step: 'connect', ok: false, action: expect.stringMatching(/network/) });
      });

      test('is checked from the network where its traffic starts', { timeout: 240_000 }, async () => {
        for (const [name, network] of [
          ['inside', 'storage'],
          ['outside', 'apps'],
          ['stopped', 'storage'],
          ['stopped-outside', 'apps'],
        ] as const)
          await run('run', '-d', '--stop-timeout', '0', '--name', name, '--network', network, image, 'sleep', '1000');
        await run('create', '--name', 'created', '--network', 'storage', image, 'sleep', '1000');
        await run('create', '--name', 'usual', image, 'sleep', '1000');
        const containers = ['inside', 'outside', 'stopped', 'stopped-outside', 'created', 'usual'];
        onTestFinished(async () => void (await run('rm', '-f', ...containers)));
        await run('stop', 'stopped', 'stopped-outside');
        // A container that doesn't run is checked from the network that it will have.
        for (const from of [
          `${kind}:storage`,
          'storage',
          'inside',
          'container:inside',
          'stopped',
          'container:stopped',
          'created',
        ]) {
          const { status, steps } = await check('silver', '--from', from);
          expect(status, from).toBe(0);
          expect(steps.map(({ step }) => step)).toEqual(
            expect.arrayContaining(['network', 'resolve', 'connect', 'mount', 'write']),
          );
        }
        for (const from of [`${kind}:apps`, 'outside', 'stopped-outside', 'usual']) {
          const { status, last } = await check('silver', '--from', from);
          expect(status, from).toBe(1);
          expect(last, from).toMatchObject({ step: 'connect', ok: false, action: expect.stringMatching(/network/) });
        }
        const expectedActions = {
          nobody: new RegExp(`${kind} ps`),
          [`${kind}:nothing`]: /network create/,
        };
        for (const [from, action] of Object.entries(expectedActions)) {
          const { status, last } = await check('silver', '--from', from);
          expect(status, from).toBe(1);
          expect(last, from).toMatchObject({ step: 'network', ok: false, action: expect.stringMatching(action) });
        }
        const { status, body } = await stowage.api('POST', '/v1/stores/silver/check', { from: 'nobody' });
        expect({ status, ...body }).toMatchObject({
          status: 200,
          ok: false,
          steps: [{ step: 'network', ok: false, detail: "there is no container or network 'nobody'" }],
        });
      });

      test.each([
        ['a user', ['--role', 'user'], "this request requires the role 'admin'; the token has the role 'user'"],
        [
          'an administrator of one store',
          ['--role', 'admin', '--store', 'silver'],
          'the token is limited to some stores',
        ],
      ])('%s cannot check a store from the networks of other containers', async (_who, rights, why) => {
        const token = (await runStowage('--quiet', 'token', 'create', 'ci', ...rights)).trim();
        writeFileSync(join(testFolder, 'token'), token, { mode: 0o600 });
        const [file, ...words] = [...engine.beside, program] as const;
        const access = [...words, '--url', 'http://127.0.0.1:7878', '--token-file', join(testFolder, 'token')];
        const runCheck = (from: string): Promise<CommandResult> =>
          runProgram(file, [...access, 'store', 'check', 'silver', '--from', from]);
        // The error doesn't reveal whether such a container exists.
        for (const from of [`${kind}:apps`, 'nobody'])
          expect(await runCheck(from)).toMatchObject({ status: 3, stdout: '', stderr: expect.stringContaining(why) });
      });

      test.each(['stop', 'kill'] as const)(
        'works again after a %s and start of the engine',
        { timeout: 120_000 },
        async (action) => {
          await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', action);
          const runOptions = [
            '--stop-timeout',
            '0',
            '--network',
            'apps',
            '-v',
            `${action}:/data`,
            image,
            'sleep',
            '1000',
          ];
          await run('run', '-d', '--name', action, ...runOptions);
          await run('exec', action, 'sh', '-c', 'echo before > /data/file');
          await engine[action]();
          await engine.start();
          // Succeeds when the volume's data path is in the re-created network.
          await expect.poll(() => run('start', action).then(() => 'it runs', String), maintenancePoll).toBe('it runs');
          await run('exec', action, 'sh', '-c', 'cat /data/file > /data/copy && sync');
          expect(readFileSync(join(storage.exported, 'silver', action, 'copy'), 'utf8')).toBe('before\n');
          expect((await check('silver')).last).toMatchObject({ step: 'room', ok: true });
          expect(await anchors()).toHaveLength(1);
          await run('rm', '-f', action);
          await expect.poll(() => run('volume', 'rm', action).catch(String), pollOptions).toBe(action);
        },
      );

      test('gets a new anchor container when a user removes the old one', { timeout: 120_000 }, async () => {
        await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', 'again');
        const use = (script: string): Promise<string> =>
          run('run', '--rm', '--network', 'none', '-v', 'again:/data', image, 'sh', '-c', script);
        await use('echo before > /data/file');
        const [before = ''] = await anchors();
        await run('rm', '-f', before);
        await expect.poll(() => anchors(), pollOptions).toEqual([expect.not.stringContaining(before)]);
        await expect
          .poll(() => use('cat /data/file > /data/copy && sync && echo done').catch(String), maintenancePoll)
          .toBe('done');
        expect(readFileSync(join(storage.exported, 'silver', 'again', 'copy'), 'utf8')).toBe('before\n');
        await run('volume', 'rm', 'again');
      });

      test('leaves no anchor container behind when it is removed', { timeout: 90_000 }, async () => {
        // Stowage also stops its anchor containers in that network.
        await stowage.stop();
        stowage = await start();
        await runStowage('store', 'remove', 'silver');
        // A check leaves no anchor behind, either.
        await expect.poll(() => anchors('stowage.dev/anchor'), maintenancePoll).toEqual([]);
      });
    },
  );
});
