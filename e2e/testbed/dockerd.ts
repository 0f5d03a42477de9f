import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { onPath } from './component.ts';
import type { TestEngine, TestEngineOptions } from './engine-machine.ts';
import { type MachineProcess, startInside, startMachine } from './machine.ts';
import { removeCgroups } from './own-cgroups.ts';
import { shareFolder } from './share-folder.ts';

const commandTimeoutMs = 120_000;

/** A separate Docker engine for a test. */
export interface Engine extends TestEngine {
  docker(...args: readonly string[]): Promise<string>;
}

export interface EngineOptions extends TestEngineOptions {
  /** More arguments for dockerd. */
  readonly args?: readonly string[];
}

const withoutBridges = ['--bridge', 'none', '--iptables=false', '--ip6tables=false', '--ip-forward=false'];

export async function startDockerd(signal: AbortSignal, options: EngineOptions = {}): Promise<Engine> {
  await using stack = new AsyncDisposableStack();
  const folder = await mkdtemp(join(tmpdir(), 'stowage-dockerd-'));
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  // With user remapping, users other than root must be able to traverse the folder.
  await chmod(folder, 0o711);
  for (const name of ['plugins', 'client', 'tmp']) await mkdir(join(folder, name));
  for (const shared of options.shared ?? []) stack.use(await shareFolder(shared, signal));
  stack.defer(() => removeCgroups(basename(folder)));
  const more = ['mkdir -p /run/docker/plugins', 'mount --bind "$1/plugins" /run/docker/plugins'];
  const machine = stack.use(await startMachine({ folder, more }, signal));
  const socket = join(folder, 'docker.sock');
  let daemon: MachineProcess | undefined;
  const start = async (): Promise<void> => {
    daemon = await startInside(machine, {
      command: [
        ...dockerdCommand(folder, socket),
        ...(options.bridges === true ? [] : withoutBridges),
        ...(options.args ?? []),
      ],
      // If its containerd is slow, the engine makes it write stack traces to the temporary folder.
      env: { TMPDIR: join(folder, 'tmp') },
      logFile: join(folder, 'log'),
      isReady: (log) => log.includes('API listen on'),
      signal,
    });
  };
  await start();
  // Stops the engine first, so that containers end in order.
  stack.defer(async () => await daemon?.stop());
  const resources = stack.move();
  const run = (...words: readonly string[]): Promise<string> => runClient(folder, socket, words, signal);
  const { inside, beside } = machine;
  return {
    kind: 'docker',
    socket,
    plugins: join(folder, 'plugins'),
    run,
    docker: run,
    start,
    inside,
    beside,
    stop: async () => await daemon?.stop(),
    kill: async () => await daemon?.kill(),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}

const dockerdCommand = (folder: string, socket: string): readonly string[] => [
  onPath('dockerd') ?? 'dockerd',
  '--data-root',
  join(folder, 'root'),
  '--exec-root',
  join(folder, 'exec'),
  '--pidfile',
  join(folder, 'pid'),
  '--host',
  `unix://${socket}`,
  '--cgroup-parent',
  `/${basename(folder)}`,
  '--userland-proxy=false',
];

async function runClient(
  folder: string,
  socket: string,
  words: readonly string[],
  signal: AbortSignal,
): Promise<string> {
  const { stdout } = await promisify(execFile)(onPath('docker') ?? 'docker', ['--host', `unix://${socket}`, ...words], {
    // Hides the user's own contexts and credentials.
    env: { PATH: process.env['PATH'], DOCKER_CONFIG: join(folder, 'client') },
    maxBuffer: 16 * 1024 * 1024,
    signal,
    timeout: commandTimeoutMs,
  });
  return stdout.trimEnd();
}
