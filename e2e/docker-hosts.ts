import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { loadBusybox } from '#testbed/busybox.ts';
import { cachedBuild, repository } from '#testbed/component.ts';
import { type Engine, type EngineOptions, startDockerd } from '#testbed/dockerd.ts';
import { type GaneshaExport, ganeshaDaemon, quietEnvironment } from '#testbed/ganesha.ts';
import { digest } from '#testbed/rootfs.ts';
import { expectFailure, worldReadableFolder } from './docker-fixture.ts';
import { killKeepers } from './nfs-mount-fixture.ts';
import { program, type Stowage, startStowage } from './stowage.ts';

const execute = promisify(execFile);

/** An NFS server in a network of its own. veth pairs connect hosts to that network. */
export interface RemoteNfsServer extends AsyncDisposable {
  /** The URI of the export with that tag. */
  uri(tag: string): string;
  /** The exported folder with that tag, on this machine. */
  folder(tag: string): string;
  connect(engine: Engine): Promise<void>;
}

const address = (number: number): string => `198.18.0.${number}`;
const listen = { host: address(1), nfsPort: 20_490, mountPort: 20_480 };

/** Runs the server in that network, after it has created a bridge. */
const inOwnNetwork = [
  'unshare',
  '--net',
  'sh',
  '-c',
  `ip link set lo up && ip link add switch type bridge && ip address add ${address(1)}/24 dev switch && ip link set switch up && exec "$@"`,
  'sh',
];

export async function startRemoteNfsServer(
  exports: readonly [Omit<GaneshaExport, 'path'>, ...Omit<GaneshaExport, 'path'>[]],
  signal: AbortSignal,
): Promise<RemoteNfsServer> {
  await using stack = new AsyncDisposableStack();
  const top = await worldReadableFolder('stowage-far-', stack);
  const folder = (tag: string): string => join(top, tag);
  const withPath = ({ tag, ...rest }: Omit<GaneshaExport, 'path'>) => ({ ...rest, tag, path: folder(tag) });
  const [first, ...others] = exports;
  for (const { tag } of exports) await mkdir(folder(tag));
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  // The exported folders are on the root file system of this machine, or on /tmp.
  const mountLines = mounts.filter((line) => ['/', '/tmp'].includes(line.split(' ')[1] ?? ''));
  await writeFile(join(top, 'mounts'), `${mountLines.join('\n')}\n`);
  const source = join(repository, 'e2e', 'testbed', 'ganesha', 'preload.c');
  const preload = cachedBuild('ganesha-preload', digest(readFileSync(source, 'utf8')), 'preload.so').tool();
  const daemon = await ganeshaDaemon({
    folder: top,
    exports: [withPath(first), ...others.map(withPath)],
    listen,
    signal,
    commandPrefix: inOwnNetwork,
    env: { ...quietEnvironment(top), LD_PRELOAD: preload, STOWAGE_MOUNTS: join(top, 'mounts') },
  });
  stack.defer(() => daemon.kill());
  let lastNumber = 1;
  const resources = stack.move();
  return {
    folder,
    uri: (tag) => `nfs://${listen.host}${folder(tag)}?port=${listen.nfsPort}&mountport=${listen.mountPort}`,
    connect: async (engine) => {
      lastNumber += 1;
      const hostNumber = lastNumber;
      const runInServerNetwork = (...words: readonly string[]) =>
        execute('nsenter', ['--target', `${daemon.pid}`, '--net', ...words]);
      const runIp = (...words: readonly string[]) => outputOf([...engine.beside, 'ip', ...words]);
      // By process id: the names of network namespaces are files that all hosts on this machine share.
      await runIp('link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', `port${hostNumber}`, 'netns', `${daemon.pid}`);
      await runIp('address', 'add', `${address(hostNumber)}/24`, 'dev', 'eth0');
      await runIp('link', 'set', 'eth0', 'up');
      await runInServerNetwork('ip', 'link', 'set', `port${hostNumber}`, 'master', 'switch', 'up');
    },
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}

async function outputOf([file = '', ...args]: readonly string[]): Promise<string> {
  return (await execute(file, args, { timeout: 60_000 })).stdout.trimEnd();
}

/** A machine with a network and mounts of its own, a Docker engine and Stowage. */
export interface Host extends AsyncDisposable {
  readonly name: string;
  readonly engine: Engine;
  readonly image: string;
  readonly top: string;
  /** The current Stowage. */
  readonly stowage: Stowage;
  /** The output of every Stowage that ran on this host. */
  output(): string;
  docker(...words: readonly string[]): Promise<string>;
  /** The error output of a docker command that must fail. */
  errorOf(...words: readonly string[]): Promise<string>;
  /** Starts an idle container in the background, with the volume at /data. */
  startIdleContainer(name: string, volume: string): Promise<string>;
  /** Stops Stowage if it runs, and starts it again with the same state. */
  start(): Promise<void>;
  /** The users of a volume that its store records, as `host: kind name`. */
  recordedUsers(volume: string): Promise<readonly string[]>;
  /** The mount points of volumes on this host. */
  mounts(): Promise<readonly string[]>;
  /** Runs a program on this host. */
  inside(...words: readonly string[]): Promise<string>;
  /** Kills the data paths and removes all their mounts, as a shutdown of the machine does. */
  dropMounts(): Promise<void>;
}

/** With these options a container ends at once: as process 1 it would ignore SIGTERM. */
export const stopAtOnceOptions = ['--stop-signal', 'KILL', '--network', 'none'];

const hostnameScript = 'hostname "$1" && shift && exec "$@"';

export async function startHost(
  name: string,
  server: RemoteNfsServer | undefined,
  signal: AbortSignal,
  options: EngineOptions = {},
): Promise<Host> {
  await using stack = new AsyncDisposableStack();
  const top = await worldReadableFolder('st-host-', stack);
  stack.defer(() => killKeepers(top));
  const engine = stack.use(await startDockerd(signal, options));
  await server?.connect(engine);
  const image = await loadBusybox(engine, signal);
  let stowage: Stowage | undefined;
  stack.defer(async () => await stowage?.stop());
  let earlierOutput = '';
  const start = async (): Promise<void> => {
    await stowage?.stop();
    earlierOutput += stowage?.output() ?? '';
    stowage = await startStowage({
      command: [...engine.beside, 'unshare', '--uts', 'sh', '-c', hostnameScript, 'sh', name, program],
      state: join(top, 's'),
      socket: join(top, 'r', 'stowage.sock'),
      options: ['--plugins', engine.plugins, '--docker-socket', engine.socket, '--log-level', 'info'],
    });
  };
  await start();
  const docker = (...words: readonly string[]): Promise<string> => engine.docker(...words);
  const currentStowage = (): Stowage => stowage ?? expectRunning();
  const mounts = async (): Promise<readonly string[]> =>
    (await outputOf([...engine.inside, 'cat', '/proc/self/mounts']))
      .split('\n')
      .flatMap((line) => line.split(' ')[1] ?? [])
      .filter((path) => path.startsWith(`${top}/`) && path.includes('/sv1-'));
  const resources = stack.move();
  return {
    name,
    engine,
    image,
    top,
    docker,
    start,
    mounts,
    get stowage() {
      return currentStowage();
    },
    output: () => `${earlierOutput}${currentStowage().output()}`,
    inside: (...words) => outputOf([...engine.inside, ...words]),
    errorOf: expectFailure(docker),
    startIdleContainer: (container, volume) =>
      docker('run', '-d', ...stopAtOnceOptions, '--name', container, '-v', `${volume}:/data`, image, 'sleep', '1000'),
    recordedUsers: async (volume) => {
      const { body } = await currentStowage().api('GET', `/v1/volumes/${volume}`);
      const uses = (body['uses'] ?? []) as readonly ListedUse[];
      return uses.flatMap(({ node, users }) => users.map((user) => `${node}: ${user.kind} ${user.name}`)).sort();
    },
    dropMounts: async () => {
      killKeepers(top);
      for (const path of (await mounts()).toReversed()) await outputOf([...engine.inside, 'umount', '--lazy', path]);
    },
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}

interface ListedUse {
  readonly host: string;
  readonly node: string;
  readonly users: readonly { readonly kind: string; readonly name: string }[];
}

function expectRunning(): never {
  throw new Error('Stowage was not started');
}
