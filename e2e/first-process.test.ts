import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { mkdtempDisposable, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { program } from './stowage.ts';

interface FirstProcess {
  readonly child: ChildProcess;
  /** The process id outside the container. */
  readonly pid: number;
  output(): string;
}

const nodeArguments = (folder: string): readonly string[] => [
  '--config',
  'none',
  '--plugins',
  'none',
  '--docker-socket',
  'none',
  '--podman-socket',
  'none',
  '--state',
  join(folder, 's'),
  '--socket',
  join(folder, 'k'),
];

/** Commands that run until they receive a signal. */
const argumentsFor: Readonly<Record<string, (folder: string) => readonly string[]>> = {
  node: nodeArguments,
  up: (folder) => [...nodeArguments(folder), '--listen', 'none'],
  controller: (folder) => {
    const cluster = { name: 'c', cluster: { server: 'http://127.0.0.1:9' } };
    const [user, context] = [
      { name: 'u', user: { token: 't' } },
      { name: 'x', context: { cluster: 'c', user: 'u' } },
    ];
    const file = join(folder, 'kubeconfig');
    const lists = { clusters: [cluster], users: [user], contexts: [context], 'current-context': 'x' };
    writeFileSync(file, JSON.stringify({ apiVersion: 'v1', kind: 'Config', ...lists }));
    return ['--kubeconfig', file, '--namespace', 'default', '--state', join(folder, 's')];
  },
  keeper: (folder) => ['--folder', join(folder, 'keeper')],
};

/** Starts the command as process 1 of a new PID namespace, as an engine does. Resolves when its program runs. */
async function startFirstProcess(folder: string, command: string, ...more: readonly string[]): Promise<FirstProcess> {
  const words = [command, ...(argumentsFor[command]?.(folder) ?? []), ...more];
  const child = spawn(
    'unshare',
    ['--pid', '--fork', ...slaveMounts, '--mount-proc', '--kill-child', program, ...words],
    {
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  );
  onTestFinished(() => void child.kill('SIGKILL'));
  const text: string[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => text.push(String(data)));
  for (;;) {
    const [pid = 0] = (await readFile(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8')).split(' ').map(Number);
    if (pid > 0 && handlesSigterm(pid)) return { child, pid, output: () => text.join('') };
    await setTimeout(1);
  }
}

/** Whether the process handles SIGTERM. */
function handlesSigterm(pid: number): boolean {
  const caught = /^SigCgt:\s*([0-9a-f]+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? '0';
  return (BigInt(`0x${caught}`) & (1n << 14n)) !== 0n;
}

describe.skipIf(lacks('root'))('the first process of a container', () => {
  test.each(['node', 'up', 'controller', 'keeper'])(
    'handles SIGTERM from its first moment on: %s',
    { timeout: 120_000 },
    async (command) => {
      // Each delay interrupts the load of another part of the program.
      for (const afterMs of [0, 20, 50, 100, 200, 300]) {
        await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-first-'));
        const { child, pid } = await startFirstProcess(folder.path, command);
        // The signal handler is installed before the program is loaded.
        expect(readFileSync(`/proc/${pid}/comm`, 'utf8')).toBe('stowage\n');
        await setTimeout(afterMs);
        process.kill(pid, 'SIGTERM');
        const ended = await Promise.race([once(child, 'exit'), setTimeout(30_000, 'still running', { ref: false })]);
        expect(ended).not.toBe('still running');
      }
    },
  );

  const slowPollOptions = { timeout: 90_000 };
  test('forwards later signals to the server: it reloads its configuration and stops cleanly', {
    timeout: 200_000,
  }, async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-first-'));
    const { child, pid, output } = await startFirstProcess(folder.path, 'node', '--log-level', 'info');
    await expect.poll(output, slowPollOptions).toContain('stowage ready');
    process.kill(pid, 'SIGHUP');
    await expect.poll(output, slowPollOptions).toContain('configuration reloaded');
    process.kill(pid, 'SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
    expect(output()).toMatch(/stowage stopped\n$/);
  });

  test('exits with the status of the program that it started', async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-first-'));
    const child = spawn('unshare', ['--pid', '--fork', program, 'node', '--state', folder.path, '--log-level', 'loud']);
    expect(await once(child, 'exit')).toEqual([2, null]);
  });
});
