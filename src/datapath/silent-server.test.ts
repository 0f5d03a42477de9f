import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { type KeeperMount, runWithFaults, type Source, sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { suspend } from '#testing/suspend.ts';
import { run, runFioVerify } from '#testing/workloads.ts';

const silenceMs = 20_000;
const maxExitMs = 15_000;

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'fio'))('a server that hangs', () => {
  const exported = exportedByGanesha();
  const otherServer = exportedByGanesha();

  /** A directory of the server with a file. */
  async function source(name = 'folder'): Promise<Source> {
    const folder = exported.on(name);
    mkdirSync(folder);
    writeFileSync(join(folder, 'file'), 'data'.repeat(1000));
    return await sourceOf(exported.server, folder);
  }

  /** Operations in progress when the server falls silent. None of them can complete without it. */
  const commandsOn = (mount: KeeperMount): readonly (readonly [string, ...string[]])[] => [
    ['cat', mount.on('file')],
    ['mkdir', mount.on('directory')],
    ['dd', 'if=/dev/zero', `of=${mount.on('new')}`, 'bs=64k', 'count=8', 'conv=fsync', 'status=none'],
    ['ls', '-l', mount.at],
    ['rm', mount.on('file')],
  ];

  /** Programs waiting for the mount, each in a separate request. */
  async function startWaitingPrograms(mount: KeeperMount): Promise<readonly ChildProcess[]> {
    const children: ChildProcess[] = [];
    for (const [program, ...args] of commandsOn(mount)) {
      children.push(spawn(program, args, { stdio: 'ignore' }));
      await eventually(
        () => mount.waiting(),
        (count) => count >= children.length,
      );
    }
    return children;
  }

  const exitOf = (child: ChildProcess): Promise<unknown> =>
    child.exitCode === null && child.signalCode === null ? once(child, 'exit') : Promise.resolve();
  const exitWithin = (children: readonly ChildProcess[], ms: number): Promise<unknown> =>
    Promise.race([Promise.all(children.map(exitOf)), sleep(ms, 'waits')]);

  test('for 20 s: hard mounts continue with correct data, soft mounts fail before', { timeout: 90_000 }, async () => {
    await using mounts = await startKeeperMounts();
    const hard = await mounts.mount(await source());
    // The second timeout is for a busy machine. Both together are shorter than the silence.
    const [softMs, slackMs] = [3_000, 12_000];
    const soft = await mounts.mount(await source('other'), { softMs, cacheMs: 0 });
    await run('cat', [soft.on('file')]);
    const work = { isDone: false };
    const working = runFioVerify(hard.at, mounts.folder).finally(() => {
      work.isDone = true;
    });
    await eventually(
      () => run('ls', [hard.at]),
      ({ stdout }) => stdout.includes('x.0.0'),
    );
    await exported.frozen(async () => {
      const startedAt = performance.now();
      const silentUntil = startedAt + silenceMs;
      const commands = commandsOn(soft).map(([program, ...args]) => run(program, args));
      for (const one of await Promise.allSettled(commands))
        expect(one).toMatchObject({ reason: { killed: false, stderr: expect.stringContaining('Input/output error') } });
      // A removal makes two calls.
      expect(performance.now() - startedAt).toBeLessThan(2 * softMs + slackMs);
      await sleep(silentUntil - performance.now());
      expect(work.isDone).toBe(false);
      expect(await hard.waiting()).toBeGreaterThan(0);
    });
    await working;
    await eventually(
      () => run('cat', [soft.on('file')]).catch(() => ({ stdout: '' })),
      ({ stdout }) => stdout === 'data'.repeat(1000),
    );
    await run('umount', [hard.at, soft.at]);
  });

  test('does not keep a waiting process from being killed', async () => {
    await using mounts = await startKeeperMounts();
    const mount = await mounts.mount(await source(), { cacheMs: 0 });
    await run('ls', [mount.at]);
    await exported.frozen(async () => {
      const children = await startWaitingPrograms(mount);
      for (const child of children) child.kill('SIGKILL');
      expect(await exitWithin(children, maxExitMs)).not.toBe('waits');
      for (const child of children) expect(child.signalCode).toBe('SIGKILL');
    });
    expect((await run('cat', [mount.on('file')])).stdout).toBe('data'.repeat(1000));
    await run('umount', [mount.at]);
  });

  /** A program with an open file, which it changes on demand. */
  async function startWriter(file: string): Promise<ChildProcess> {
    const script = 'exec 3>"$1"; echo open; read go; echo data >&3';
    const child = spawn('sh', ['-c', script, 'sh', file], { stdio: ['pipe', 'pipe', 'ignore'] });
    await once(child.stdout, 'data');
    return child;
  }

  test('and a killed data path: mounts of other servers continue, and waiting processes can be killed', async () => {
    await using mounts = await startKeeperMounts();
    const silentMount = await mounts.mount(await source(), { cacheMs: 60_000 });
    const healthyMount = await mounts.mount(await sourceOf(otherServer.server, otherServer.folder), { cacheMs: 0 });
    const [silentWriter, healthyWriter] = [
      await startWriter(silentMount.on('new')),
      await startWriter(healthyMount.on('new')),
    ];
    await exported.frozen(async () => {
      await mounts.killDataPath();
      await mounts.ready();
      healthyWriter.stdin?.end('go\n');
      expect(await exitWithin([healthyWriter], maxExitMs)).not.toBe('waits');
      await run('mkdir', [healthyMount.on('directory')]);
      expect(await silentMount.waiting()).toBe(0);
      silentWriter.stdin?.end('go\n');
      await eventually(
        () => silentMount.waiting(),
        (count) => count > 0,
      );
      // Not answered, because it was not sent: the old connections of this server are not drained.
      expect(await exitWithin([silentWriter], 2_000)).toBe('waits');
      silentWriter.kill('SIGKILL');
      expect(await exitWithin([silentWriter], maxExitMs)).not.toBe('waits');
    });
    expect((await run('cat', [healthyMount.on('new')])).stdout).toBe('data\n');
    await run('mkdir', [silentMount.on('directory')]);
    await run('umount', [silentMount.at, healthyMount.at]);
  });

  test('and a killed data path: its successor interrupts the requests of killed processes', async () => {
    await using mounts = await startKeeperMounts();
    const mount = await mounts.mount(await source(), { cacheMs: 0 });
    await run('ls', [mount.at]);
    await mounts.ready();
    await exported.frozen(async () => {
      const children = commandsOn(mount).map(([program, ...args]) => spawn(program, args, { stdio: 'ignore' }));
      await eventually(
        () => mount.waiting(),
        (count) => count >= children.length,
      );
      for (const child of children) child.kill('SIGKILL');
      // Enough time to read the interrupts, which the kernel reports once, but not to act on them.
      await sleep(100);
      await mounts.killDataPath();
      expect(await exitWithin(children, maxExitMs)).not.toBe('waits');
      for (const child of children) expect(child.signalCode).toBe('SIGKILL');
    });
    await run('umount', [mount.at]);
  });

  test.each(['data path first', 'data path last'])(
    'while an open file is replaced and both the process and the data path are killed (%s): the name refers to one of the files',
    async (order) => {
      await using mounts = await startKeeperMounts();
      const mount = await mounts.mount(await source(), { cacheMs: 60_000 });
      const folder = exported.on('folder');
      writeFileSync(join(folder, 'new'), 'new');
      const script = 'exec 3<"$1/file"; stat "$1/new" >/dev/null; echo open; read go; exec mv -f "$1/new" "$1/file"';
      const child = spawn('sh', ['-c', script, 'sh', mount.at], { stdio: ['pipe', 'pipe', 'ignore'] });
      await once(child.stdout, 'data');
      await mounts.ready();
      await exported.frozen(async () => {
        child.stdin.end('go\n');
        await eventually(
          () => mount.waiting(),
          (count) => count > 0,
        );
        const kills = [
          () => mounts.killDataPath(),
          async () => {
            child.kill('SIGKILL');
            expect(await exitWithin([child], maxExitMs)).not.toBe('waits');
          },
        ];
        // Time to send calls that the server will execute later.
        await sleep(500);
        for (const kill of order === 'data path first' ? kills : kills.toReversed()) await kill();
      });
      // Resolves when the server has executed, or will never execute, all earlier calls.
      await run('mkdir', [mount.on('directory')]);
      const names = await eventually(
        () => readdirSync(folder),
        (found) => !found.some((name) => name.startsWith('.nfs')),
      );
      expect(names).toContain('file');
      const { stdout } = await run('cat', [mount.on('file')]);
      expect(stdout).toBe(names.includes('new') ? 'data'.repeat(1000) : 'new');
      await run('umount', [mount.at]);
    },
  );

  test('while one mount is forcibly unmounted: another mount of the same server gets its own answers', async () => {
    await using mounts = await startKeeperMounts();
    const abortedMount = await mounts.mount(await source(), { cacheMs: 0 });
    const remainingMount = await mounts.mount(await source('other'));
    for (const { at } of [abortedMount, remainingMount]) await run('ls', [at]);
    await exported.frozen(async () => {
      const children = await startWaitingPrograms(abortedMount);
      await abortedMount.abort();
      expect(await exitWithin(children, maxExitMs)).not.toBe('waits');
      await eventually(
        () => mounts.ready(),
        (state) => state.mounts === 1,
      );
    });
    // When the server continues, calls in flight of the removed mount continue, too.
    await runFioVerify(remainingMount.at, mounts.folder);
    await runWithFaults(
      2,
      () => mounts.killDataPath(),
      () => runFioVerify(remainingMount.at, mounts.folder),
    );
    expect((await run('cat', [remainingMount.on('file')])).stdout).toBe('data'.repeat(1000));
    await run('umount', [abortedMount.at, remainingMount.at]);
  });

  test('soft: the deadline continues when the data path is replaced', async () => {
    await using mounts = await startKeeperMounts();
    const [softMs, killedMs] = [12_000, 11_000];
    const mount = await mounts.mount(await source(), { cacheMs: 0, softMs });
    await run('ls', [mount.at]);
    await mounts.ready();
    await exported.frozen(async () => {
      const startedAt = performance.now();
      // After an error rm makes a second call.
      const commands = commandsOn(mount).filter(([program]) => program !== 'rm');
      const commandResults = Promise.allSettled(commands.map(([program, ...args]) => run(program, args)));
      await sleep(killedMs);
      await mounts.killDataPath();
      for (const one of await commandResults)
        expect(one).toMatchObject({ reason: { killed: false, stderr: expect.stringContaining('Input/output error') } });
      expect(performance.now() - startedAt).toBeGreaterThan(killedMs);
      expect(performance.now() - startedAt).toBeLessThan(killedMs + softMs - 1_000);
    });
    await run('umount', [mount.at]);
  });

  test('without a data path: aborting the connection ends all waiting processes', async () => {
    await using mounts = await startKeeperMounts();
    const mount = await mounts.mount(await source(), { cacheMs: 0 });
    await run('ls', [mount.at]);
    const { active } = await mounts.ready();
    const suspendedPids = [mounts.keeper.pid, active?.pid ?? 0];
    await exported.frozen(async () => {
      const children = await startWaitingPrograms(mount);
      try {
        for (const pid of suspendedPids) await suspend(pid);
        for (const child of children) child.kill('SIGKILL');
        // The kernel waits for the answer to a request that was read; otherwise the next lines would prove nothing.
        expect(await exitWithin(children, 2_000)).toBe('waits');
        await mount.abort();
        expect(await exitWithin(children, maxExitMs)).not.toBe('waits');
      } finally {
        for (const pid of suspendedPids) process.kill(pid, 'SIGCONT');
      }
    });
  });
});
