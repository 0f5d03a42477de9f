import { mkdir, mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onPath } from '#testbed/component.ts';
import type { TestEngine } from '#testbed/engine-machine.ts';
import { type MachineProcess, runInside, startInside } from '#testbed/machine.ts';
import { program } from './stowage.ts';

/** An engine network with a machine that runs Stowage's NFS server. Only that network can reach the server. */
export interface StorageNetwork extends AsyncDisposable {
  /** The URI of an exported directory. */
  uri(name: 'silver' | 'plain'): string;
  /** The exported folder on this machine. */
  readonly exported: string;
}

export const storageHost = '10.77.0.2';
export const storagePort = 2049;
const [subnet, gateway] = ['10.77.0.0/24', '10.77.0.1'];
const dockerBridge = 'storage0';
/** The address range for containers. */
const containerRange = '10.77.0.128/25';

/** Creates a network `storage` without a route to the outside. The server keeps running when the engine stops. */
export async function startStorageNetwork(engine: TestEngine, signal: AbortSignal): Promise<StorageNetwork> {
  await using stack = new AsyncDisposableStack();
  const folder = await realpath(await mkdtemp(join(tmpdir(), 'st-filer-')));
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const exported = join(folder, 'export');
  for (const name of ['silver', 'plain']) await mkdir(join(exported, name), { recursive: true });
  const bridgeOptions = {
    docker: ['--opt', `com.docker.network.bridge.name=${dockerBridge}`],
    podman: ['--disable-dns'],
  };
  const networkOptions = [
    '--internal',
    '--subnet',
    subnet,
    '--gateway',
    gateway,
    '--ip-range',
    containerRange,
    ...bridgeOptions[engine.kind],
  ];
  await engine.run('network', 'create', ...networkOptions, 'storage');
  const inspect = ['network', 'inspect', '--format', '{{.NetworkInterface}}', 'storage'];
  const bridge = engine.kind === 'docker' ? dockerBridge : await engine.run(...inspect);
  const ip = (...words: readonly string[]): Promise<string> => runInside(engine, onPath('ip') ?? 'ip', ...words);
  // Podman creates the bridge with the first container, and uses an existing bridge.
  await ip('link', 'show', bridge).catch(() => ip('link', 'add', bridge, 'type', 'bridge'));
  await ip('link', 'set', bridge, 'up');
  await ip('netns', 'add', 'filer');
  await ip('link', 'add', 'filer0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'filer');
  await ip('link', 'set', 'filer0', 'master', bridge, 'up');
  await ip('-n', 'filer', 'address', 'add', `${storageHost}/24`, 'dev', 'eth0');
  for (const link of ['lo', 'eth0']) await ip('-n', 'filer', 'link', 'set', link, 'up');
  // Engines give the host an address in each network. The server drops packets to that address, so that the host can't
  // reach it.
  await ip('-n', 'filer', 'route', 'add', 'blackhole', gateway);
  const server: MachineProcess = await startInside(engine, {
    command: [
      onPath('ip') ?? 'ip',
      'netns',
      'exec',
      'filer',
      program,
      'nfs',
      'serve',
      exported,
      '--state',
      join(folder, 'state'),
      '--port',
      `${storagePort}`,
      '--allow',
      subnet,
      '--squash',
      'none',
    ],
    logFile: join(folder, 'log'),
    isReady: (log) => log.includes('stowage nfs ready'),
    signal,
  });
  stack.defer(() => server.kill());
  const resources = stack.move();
  return {
    exported,
    uri: (name) => `nfs://${storageHost}/export/${name}?port=${storagePort}&mountport=${storagePort}`,
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}
