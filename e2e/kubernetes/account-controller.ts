import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Cluster } from '#testbed/kubernetes/cluster.ts';
import { addresses } from '#testbed/kubernetes/network.ts';
import { program } from '../stowage.ts';
import { namespace } from './chart-fixture.ts';

/** `stowage controller` as a process with the rights of its service account, at an address that agents reach. */
export interface AccountController extends AsyncDisposable {
  readonly output: () => string;
  /** Sends SIGTERM and waits for the end of the process. */
  stop(): Promise<void>;
}

export const controllerPort = { host: addresses.controlPlane, port: 8443 } as const;

/** A kubeconfig of an account, for use in the control plane's network. */
export async function accountConfig(cluster: Cluster, account: string): Promise<string> {
  const token = await cluster.kubectl('create', 'token', account, '--namespace', namespace, '--duration=3h');
  const admin: { readonly clusters: readonly [{ readonly cluster: { readonly 'certificate-authority': string } }] } =
    JSON.parse(await readFile(cluster.kubeconfig, 'utf8'));
  const clusterEntry = {
    server: `https://${addresses.controlPlane}:${addresses.apiPort}`,
    'certificate-authority': admin.clusters[0].cluster['certificate-authority'],
  };
  const file = join(cluster.folder, `${account}.kubeconfig`);
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'own',
    clusters: [{ name: 'own', cluster: clusterEntry }],
    users: [{ name: account, user: { token } }],
    contexts: [{ name: 'own', context: { cluster: 'own', user: account } }],
  };
  await writeFile(file, JSON.stringify(config), { mode: 0o600 });
  return file;
}

export async function startControllerAsAccount(
  cluster: Cluster,
  kubeconfig: string,
  ...more: readonly string[]
): Promise<AccountController> {
  const folder = join(cluster.folder, 'controller');
  await mkdir(folder, { recursive: true });
  const [first, ...inside] = cluster.network.inside;
  const words = ['--kubeconfig', kubeconfig, '--namespace', namespace, '--state', join(folder, 'state')];
  const args = [...words, '--listen', `${controllerPort.host}:${controllerPort.port}`, '--log-level', 'debug', ...more];
  const child = spawn(first, [...inside, program, 'controller', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = once(child, 'close');
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      output += chunk;
    });
  const end = async (signal: NodeJS.Signals): Promise<void> => {
    child.kill(signal);
    await ended;
    rmSync(folder, { recursive: true, force: true });
  };
  return { output: () => output, stop: () => end('SIGTERM'), [Symbol.asyncDispose]: () => end('SIGKILL') };
}
