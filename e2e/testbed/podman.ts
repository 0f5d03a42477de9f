import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { type Component, commandFailure, missingPrograms, onPath } from './component.ts';
import type { TestEngine, TestEngineOptions } from './engine-machine.ts';
import { type MachineProcess, startInside, startMachine } from './machine.ts';
import { slaveMounts } from './mount-namespace.ts';
import { removeCgroups } from './own-cgroups.ts';
import { shareFolder } from './share-folder.ts';

const commandTimeoutMs = 120_000;
const programs = ['podman', 'conmon', 'runc', 'unshare', 'nsenter', 'ip', 'findmnt'];

export const podman: Component = {
  what: 'a Podman engine that tests start for themselves (podman, conmon, runc)',
  probe: () => missingPrograms(...programs) ?? commandFailure('unshare', [...slaveMounts, 'true']),
  command: 'npm run testbed, as root',
  packages: () => (missingPrograms(...programs) === undefined ? [] : ['podman', 'runc', 'iproute2', 'util-linux']),
};

export interface PodmanEngine extends TestEngine {
  podman(...args: readonly string[]): Promise<string>;
}

/** Podman is configured with plugins by name and path, and not with a folder. */
const podmanPlugins = ['stowage', 'stowage-local'] as const;

const containersConf = (plugins: string, bridges: boolean): string => `
[containers]
# The machine may allow less than Podman asks for.
default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]
${bridges ? '' : 'netns = "none"'}
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.volume_plugins]
${podmanPlugins.map((name) => `${name} = "${join(plugins, name)}.sock"`).join('\n')}
`;

const storageConf = (folder: string): string => `
[storage]
driver = "overlay"
graphroot = "${join(folder, 'root')}"
runroot = "${join(folder, 'run')}"
`;

export async function startPodman(signal: AbortSignal, options: TestEngineOptions = {}): Promise<PodmanEngine> {
  await using stack = new AsyncDisposableStack();
  const folder = await mkdtemp(join(tmpdir(), 'stowage-podman-'));
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const plugins = join(folder, 'plugins');
  for (const name of ['plugins', 'tmp']) await mkdir(join(folder, name));
  await writeFile(join(folder, 'containers.conf'), containersConf(plugins, options.bridges === true));
  await writeFile(join(folder, 'storage.conf'), storageConf(folder));
  for (const shared of options.shared ?? []) stack.use(await shareFolder(shared, signal));
  stack.defer(() => removeCgroups(basename(folder)));
  // Podman creates its cgroups at the root, next to those of other engines, and never removes them.
  const machine = stack.use(await startMachine({ folder, groups: true }, signal));
  const socket = join(folder, 'podman.sock');
  const env = {
    CONTAINERS_CONF: join(folder, 'containers.conf'),
    CONTAINERS_STORAGE_CONF: join(folder, 'storage.conf'),
    TMPDIR: join(folder, 'tmp'),
  };
  const program = onPath('podman') ?? 'podman';
  let service: MachineProcess | undefined;
  const start = async (): Promise<void> => {
    // The socket of a killed Podman would look as if Podman still listened.
    await rm(socket, { force: true });
    service = await startInside(machine, {
      command: [program, '--log-level', 'info', 'system', 'service', '--time', '0', `unix://${socket}`],
      logFile: join(folder, 'log'),
      isReady: (log) => log.includes('API service listening'),
      env,
      signal,
    });
  };
  await start();
  stack.defer(async () => await service?.stop());
  const run = async (...words: readonly string[]): Promise<string> => {
    const [file, ...enter] = machine.inside;
    const { stdout } = await promisify(execFile)(file, [...enter, program, ...words], {
      env: { PATH: process.env['PATH'], HOME: '/root', ...env },
      maxBuffer: 16 * 1024 * 1024,
      signal,
      timeout: commandTimeoutMs,
    });
    return stdout.trimEnd();
  };
  const { inside, beside } = machine;
  const resources = stack.move();
  return {
    kind: 'podman',
    socket,
    plugins,
    run,
    podman: run,
    start,
    inside,
    beside,
    stop: async () => await service?.stop(),
    kill: async () => await service?.kill(),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}
