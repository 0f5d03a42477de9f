import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { loadBusybox } from './busybox.ts';
import { onPath } from './component.ts';
import { startDockerd } from './dockerd.ts';
import type { TestEngine } from './engine-machine.ts';
import { lacks } from './lacks.ts';
import { removeCgroups } from './own-cgroups.ts';
import { startPodman } from './podman.ts';
import { runner } from './run.ts';

const { signal } = new AbortController();
const run = runner(signal);
const kinds = [
  { kind: 'docker', start: startDockerd },
  { kind: 'podman', start: startPodman },
] as const;

/** What an engine's machine has left on this machine. */
const remainsOf = (folder: string): readonly string[] => [
  ...globSync(folder),
  ...globSync(`/sys/fs/cgroup/{,*/}${basename(folder)}`),
  ...readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .filter((line) => line.includes(folder)),
  ...processesOf(folder),
];

const processesOf = (folder: string): readonly string[] =>
  globSync('/proc/[0-9]*/cgroup').filter((path) => {
    try {
      return readFileSync(path, 'utf8').includes(basename(folder));
    } catch {
      return false;
    }
  });

describe.each(kinds)('a $kind', ({ kind, start }) => {
  describe.skipIf(lacks('root', 'mount', kind, 'busybox'))('in the test bed', () => {
    let shared: string;
    let engine: TestEngine;
    let image: string;

    beforeAll(async () => {
      shared = mkdtempSync(join(tmpdir(), 'stowage-shared-'));
      for (const name of ['here', 'there']) mkdirSync(join(shared, name));
      engine = await start(signal, { shared: [shared] });
      image = await loadBusybox(engine, signal);
    });
    afterAll(async () => {
      await engine[Symbol.asyncDispose]();
      expect(remainsOf(dirname(engine.socket))).toEqual([]);
      rmSync(shared, { recursive: true });
    });

    const runInContainer = (...words: readonly string[]): Promise<string> =>
      engine.run('run', '--rm', '--network', 'none', '--volume', `${shared}:/shared`, image, ...words);

    test('sees later mounts and unmounts of this machine', async () => {
      const mountPoint = join(shared, 'here');
      await run('mount', ['-t', 'tmpfs', 'stowage-test', mountPoint]);
      try {
        writeFileSync(join(mountPoint, 'file'), 'from here');
        expect(await runInContainer('cat', '/shared/here/file')).toBe('from here');
        await runInContainer('sh', '-c', 'echo back >/shared/here/answer');
        expect(readFileSync(join(mountPoint, 'answer'), 'utf8')).toBe('back\n');
      } finally {
        await run('umount', [mountPoint]);
      }
      expect(await runInContainer('ls', '/shared/here')).toBe('');
    });

    test('runs programs in its network and mount namespace, with pids of this machine', async () => {
      const mountPoint = join(shared, 'there');
      const [file, ...words] = engine.beside;
      const script =
        'mount -t tmpfs stowage-test "$1" && echo from there >"$1/file" && echo $$ $(ip -o link | wc -l) && cat';
      const child = spawn(file, [...words, 'sh', '-c', script, 'sh', mountPoint], {
        stdio: ['pipe', 'pipe', 'inherit'],
      });
      const ended = once(child, 'exit');
      const [output] = (await once(child.stdout.setEncoding('utf8'), 'data')) as [string];
      expect(output).toBe(`${child.pid} 1\n`);
      expect(await runInContainer('cat', '/shared/there/file')).toBe('from there');
      expect(globSync(join(mountPoint, '*'))).toEqual([]);
      child.stdin.end();
      expect(await ended).toEqual([0, null]);
      // The mount belongs to the engine's machine, and outlives the program that made it.
      expect(await runInContainer('cat', '/shared/there/file')).toBe('from there');
      const [enter, ...inside] = engine.inside;
      await run(enter, [...inside, 'umount', mountPoint]);
      expect(await runInContainer('ls', '/shared/there')).toBe('');
    });

    test.each(['stop', 'kill'] as const)('keeps its containers and volumes over a %s and a start', async (action) => {
      const name = `kept-${action}`;
      const volume = ['--volume', `${name}:/data`, '--network', 'none'];
      await engine.run(
        'run',
        '--detach',
        '--init=false',
        '--stop-timeout',
        '0',
        '--name',
        name,
        ...volume,
        image,
        'sh',
        '-c',
        'echo kept >/data/file; sleep 1000',
      );
      await expect.poll(() => engine.run('exec', name, 'cat', '/data/file').catch(() => '')).toBe('kept');
      await engine[action]();
      await engine.start();
      expect(await engine.run('ps', '--all', '--quiet', '--filter', `name=${name}`)).not.toBe('');
      expect(await engine.run('run', '--rm', ...volume, image, 'cat', '/data/file')).toBe('kept');
      await engine.run('rm', '--force', name);
    });

    test('does not see another engine that runs in parallel', async () => {
      await engine.run('create', '--name', 'mine', image);
      const other = await start(signal);
      try {
        await loadBusybox(other, signal);
        await other.run('create', '--name', 'theirs', image);
        expect(await engine.run('ps', '--all', '--format', '{{.Names}}')).toBe('mine');
        expect(await other.run('ps', '--all', '--format', '{{.Names}}')).toBe('theirs');
      } finally {
        await other[Symbol.asyncDispose]();
      }
      expect(remainsOf(dirname(other.socket))).toEqual([]);
      await engine.run('rm', 'mine');
    });

    test('ends with the test process, together with its containers', async () => {
      const program = `
        import { loadBusybox } from '#testbed/busybox.ts';
        import { startDockerd } from '#testbed/dockerd.ts';
        import { startPodman } from '#testbed/podman.ts';
        const { signal } = new AbortController();
        const engine = await ${start.name}(signal);
        const image = await loadBusybox(engine, signal);
        await engine.run('run', '--detach', '--network', 'none', image, 'sleep', '1000');
        console.log(engine.socket);`;
      const flags = ['--input-type=module', '--disable-warning=ExperimentalWarning', '--eval', program];
      const child = spawn(process.execPath, flags, { stdio: ['ignore', 'pipe', 'inherit'] });
      const ended = once(child, 'exit');
      const [output] = (await once(child.stdout.setEncoding('utf8'), 'data')) as [string];
      const folder = dirname(output.trim());
      onTestFinished(() => {
        removeCgroups(basename(folder));
        rmSync(folder, { recursive: true, force: true });
      });
      expect(processesOf(folder).length).toBeGreaterThan(0);
      child.kill('SIGKILL');
      await ended;
      await expect.poll(() => processesOf(folder)).toEqual([]);
    });
  });
});

describe.skipIf(lacks('root', 'mount', 'firewall', 'docker', 'busybox'))('a Docker engine with bridge networks', () => {
  test('has networks that are isolated from each other and from this machine', async () => {
    await using engine = await startDockerd(signal, { bridges: true });
    const image = await loadBusybox(engine, signal);
    for (const name of ['silver', 'gold']) await engine.docker('network', 'create', name);
    const serve = 'mkdir /www && echo hello >/www/index.html && exec httpd -f -h /www';
    await engine.docker('run', '--detach', '--network', 'silver', '--name', 'server', image, 'sh', '-c', serve);
    const address = await engine.docker(
      'inspect',
      '--format',
      '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}',
      'server',
    );
    // Not as process 1, which can't be killed from inside its namespace.
    const ask = `timeout 3 wget -q -O - http://${address}; exit $?`;
    const get = (network: string): Promise<string> =>
      engine.docker('run', '--rm', '--network', network, image, 'sh', '-c', ask);
    await expect.poll(() => get('silver').catch(() => '')).toBe('hello');
    // Exit status 143: SIGTERM ended the program while it was still trying.
    await expect(get('gold')).rejects.toMatchObject({ code: 143 });
    expect(await readFile('/proc/net/dev', 'utf8')).not.toMatch(/docker0|br-/);
    const [file, ...words] = engine.beside;
    expect(await run(file, [...words, onPath('iptables') ?? 'iptables', '-S', 'FORWARD'])).toContain('-P FORWARD DROP');
    await engine.docker('rm', '--force', 'server');
  });
});
