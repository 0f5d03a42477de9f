import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { loadBusybox } from '#testbed/busybox.ts';
import type { TestEngine } from '#testbed/engine-machine.ts';
import { runInside } from '#testbed/machine.ts';
import { needs } from '#testbed/needs.ts';
import { expectFailure, startEngine, suiteResources, worldReadableFolder } from './docker-fixture.ts';
import { killKeepers, pollOptions } from './nfs-mount-fixture.ts';
import { type StorageNetwork, startStorageNetwork, storageHost, storagePort } from './storage-network.ts';
import { type Finished, program, run as runProgram, type Stowage, startStowage } from './stowage.ts';

/** Maintenance runs every 30 seconds, and takes longer while a server does not answer. */
const aRound = { timeout: 60_000, interval: 500 };

interface Step {
  readonly step: string;
  readonly ok: boolean;
  readonly detail: string;
  readonly action: string | null;
}

describe.each(['docker', 'podman'] as const)('%s', (kind) => {
  describe.skipIf(needs('root', kind, 'busybox', 'mount', 'fuse', 'firewall'))('and a store in a network of it', () => {
    let top: string;
    let engine: TestEngine;
    let storage: StorageNetwork;
    let stowage: Stowage;
    let image: string;
    const { all, signal } = suiteResources();
    const run = (...words: readonly string[]): Promise<string> => engine.run(...words);
    const refused = expectFailure(run);
    const says = async (...words: string[]): Promise<string> => {
      const { status, stdout, stderr } = await stowage.cli(...words);
      expect(status, `${words.join(' ')}: ${stderr}`).toBe(0);
      return stdout;
    };
    /** Containers that keep a network namespace alive; by default those of the store's network. */
    const anchors = async (label = `stowage.dev/anchor=${kind}:storage`): Promise<readonly string[]> =>
      (await run('ps', '--all', '--quiet', '--filter', `label=${label}`)).split('\n').filter(Boolean);
    /** Tries to connect to the server's port, and prints whether that worked. */
    const knock = `timeout 3 nc -w 2 ${storageHost} ${storagePort} < /dev/null && echo reached || echo not reached`;
    const knocking = (network: string): Promise<string> =>
      run('run', '--rm', '--network', network, image, 'sh', '-c', knock);
    const check = async (...words: string[]): Promise<Finished & { steps: readonly Step[]; last: Step }> => {
      const done = await stowage.cli('--json', 'store', 'check', ...words);
      const { steps } = JSON.parse(done.stdout) as { readonly steps: readonly Step[] };
      return { ...done, steps, last: steps.at(-1) ?? expect.fail(done.stderr) };
    };

    const start = (): Promise<Stowage> =>
      startStowage({
        state: join(top, 's'),
        socket: join(top, 'r', 'stowage.sock'),
        config: join(top, 'stowage.yaml'),
        listen: '127.0.0.1:7878',
        command: [...engine.beside, program],
        options: ['--plugins', engine.plugins, `--${kind}-socket`, engine.socket],
      });

    beforeAll(async () => {
      top = await worldReadableFolder('st-net-', all);
      engine = all.use(await startEngine[kind](signal, { bridges: true }));
      all.defer(() => killKeepers(top));
      storage = all.use(await startStorageNetwork(engine, signal));
      await run('network', 'create', 'apps');
      image = await loadBusybox(engine, signal);
      const config = { stores: { plain: { uri: `${storage.uri('plain')}&timeout=2s&retries=0` } } };
      writeFileSync(join(top, 'stowage.yaml'), JSON.stringify(config));
      stowage = await start();
      all.defer(() => stowage.stop());
      await says('store', 'add', 'silver', `${storage.uri('silver')}&network=${kind}:storage`);
    }, 120_000);

    test('keeps its server out of reach of the host and of applications', async () => {
      expect(await knocking('storage')).toBe('reached');
      expect(await knocking('apps')).toBe('not reached');
      expect(await runInside(engine, 'busybox', 'sh', '-c', knock)).toBe('not reached');
    });

    test('gives volumes to containers that have no route to the server', async () => {
      await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', 'photos');
      const use = (network: string, script: string): Promise<string> =>
        run('run', '--rm', '--network', network, '-v', 'photos:/data', image, 'sh', '-c', script);
      await use('apps', 'echo from apps > /data/file');
      expect(readFileSync(join(storage.exported, 'silver', 'photos', 'file'), 'utf8')).toBe('from apps\n');
      expect(await use('none', 'ip route; cat /data/file')).toBe('from apps');
      expect(await use('apps', knock)).toBe('not reached');
      expect(await anchors()).toHaveLength(1);
      if (kind === 'docker')
        expect(JSON.parse(await run('volume', 'inspect', 'photos'))[0]).toMatchObject({
          Status: { store: 'silver', network: 'docker:storage' },
        });
      expect(await says('store', 'list')).toContain(`${kind}:storage`);
      await run('volume', 'rm', 'photos');
    });

    test('fails outside of that network, with an error that says what to do', async () => {
      const said = await refused('volume', 'create', '--driver', 'stowage', '-o', 'store=plain', 'x');
      expect(said).toMatch(/network/);
      expect(said).toMatch(/administrator/);
      expect(said).not.toContain(storageHost);
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
      // A container that doesn't run yet is checked from the network that it will have.
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
      const wrong = {
        nobody: new RegExp(`${kind} ps`),
        [`${kind}:nothing`]: /network create/,
      };
      for (const [from, action] of Object.entries(wrong)) {
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
    ])('refuses %s who wants to check from the network of others, and enters none', async (_who, rights, why) => {
      const token = (await says('--quiet', 'token', 'create', 'ci', ...rights)).trim();
      writeFileSync(join(top, 'token'), token, { mode: 0o600 });
      const [file, ...words] = [...engine.beside, program] as const;
      const access = [...words, '--url', 'http://127.0.0.1:7878', '--token-file', join(top, 'token')];
      const asking = (from: string): Promise<Finished> =>
        runProgram(file, [...access, 'store', 'check', 'silver', '--from', from]);
      // The error doesn't reveal whether such a container exists.
      for (const from of [`${kind}:apps`, 'nobody'])
        expect(await asking(from)).toMatchObject({ status: 3, stdout: '', stderr: expect.stringContaining(why) });
    });

    test.each(['stop', 'kill'] as const)(
      'is there again after a %s and start of the engine',
      { timeout: 120_000 },
      async (how) => {
        await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', how);
        const sleeping = ['--stop-timeout', '0', '--network', 'apps', '-v', `${how}:/data`, image, 'sleep', '1000'];
        await run('run', '-d', '--name', how, ...sleeping);
        await run('exec', how, 'sh', '-c', 'echo before > /data/file');
        await engine[how]();
        await engine.start();
        // Until the data path of the volume is in the network that was created again.
        await expect.poll(() => run('start', how).then(() => 'it runs', String), aRound).toBe('it runs');
        await run('exec', how, 'sh', '-c', 'cat /data/file > /data/copy && sync');
        expect(readFileSync(join(storage.exported, 'silver', how, 'copy'), 'utf8')).toBe('before\n');
        expect((await check('silver')).last).toMatchObject({ step: 'room', ok: true });
        expect(await anchors()).toHaveLength(1);
        await run('rm', '-f', how);
        await expect.poll(() => run('volume', 'rm', how).catch(String), pollOptions).toBe(how);
      },
    );

    test('gets a new anchor when somebody removes the old one', { timeout: 120_000 }, async () => {
      await run('volume', 'create', '--driver', 'stowage', '-o', 'store=silver', 'again');
      const use = (script: string): Promise<string> =>
        run('run', '--rm', '--network', 'none', '-v', 'again:/data', image, 'sh', '-c', script);
      await use('echo before > /data/file');
      const [before = ''] = await anchors();
      await run('rm', '-f', before);
      await expect.poll(() => anchors(), pollOptions).toEqual([expect.not.stringContaining(before)]);
      await expect
        .poll(() => use('cat /data/file > /data/copy && sync && echo done').catch(String), aRound)
        .toBe('done');
      expect(readFileSync(join(storage.exported, 'silver', 'again', 'copy'), 'utf8')).toBe('before\n');
      await run('volume', 'rm', 'again');
    });

    test('leaves no anchor behind when it is removed', { timeout: 90_000 }, async () => {
      // Together with the idle containers in its network.
      await stowage.stop();
      stowage = await start();
      await says('store', 'remove', 'silver');
      // Nor does a check leave an anchor.
      await expect.poll(() => anchors('stowage.dev/anchor'), aRound).toEqual([]);
    });
  });
});
