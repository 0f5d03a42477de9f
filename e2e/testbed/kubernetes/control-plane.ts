import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { type Daemon, startDaemon } from '../daemon.ts';
import type { Authority } from './certificates.ts';
import type { ClusterNetwork } from './network.ts';
import { addresses } from './network.ts';

/** A program of the control plane that tests can stop and start. */
export interface ControlPlaneProgram {
  /**
   * Sends SIGKILL, because an API server waits up to a minute for watches after SIGTERM. No program of the control
   * plane has state that it could lose.
   */
  stop(): Promise<void>;
  /** Freezes the program: it accepts connections, but answers nothing. */
  freeze(): Promise<void>;
  thaw(): void;
  /** Starts the program again. Resolves when it answers. */
  start(): Promise<void>;
}

export interface ControlPlane extends AsyncDisposable {
  readonly apiServer: ControlPlaneProgram;
  readonly controllerManager: ControlPlaneProgram;
  readonly scheduler: ControlPlaneProgram;
}

/** More arguments for the programs. If an argument is repeated, the last one counts. */
export interface ControlPlaneArgs {
  readonly apiServer?: readonly string[];
  readonly controllerManager?: readonly string[];
  readonly scheduler?: readonly string[];
}

export interface ControlPlaneOptions {
  readonly folder: string;
  /** The folder of the programs. */
  readonly bin: string;
  readonly network: ClusterNetwork;
  readonly authority: Authority;
  readonly args: ControlPlaneArgs;
  /** Resolves when the API server runs and has created its own roles and namespaces. */
  readonly apiReady: () => Promise<void>;
  readonly signal: AbortSignal;
}

const clientPort = 2379;
const peerPort = 2380;
const local = (port: number): string => `http://127.0.0.1:${port}`;
/** Raises the client-side rate limits, which a benchmark would measure otherwise. */
const raisedRateLimits = ['--kube-api-qps=500', '--kube-api-burst=1000'];

/**
 * Starts the control plane. Requires the certificate `apiserver`, and kubeconfigs for `controller-manager` and
 * `scheduler`.
 */
export async function startControlPlane(options: ControlPlaneOptions): Promise<ControlPlane> {
  const { folder, bin, network, authority, args, apiReady, signal } = options;
  const pki = (name: string): string => join(folder, 'pki', name);
  await using stack = new AsyncDisposableStack();
  for (const name of ['etcd', 'flex']) await mkdir(join(folder, name), { mode: 0o700 });
  const daemon = (name: string, words: readonly string[], ready: string): Promise<Daemon> =>
    startDaemon({
      command: [...network.inside, join(bin, name), ...words],
      logFile: join(folder, 'log', name),
      isReady: (log) => log.includes(ready),
      signal,
    });
  const part = async (name: string, words: readonly string[], whole = async () => {}): Promise<ControlPlaneProgram> => {
    const start = (): Promise<Daemon> => daemon(name, words, 'Serving securely');
    let current = await start();
    stack.defer(() => current.kill());
    await whole();
    return {
      stop: () => current.kill(),
      freeze: () => current.freeze(),
      thaw: () => current.thaw(),
      start: async () => {
        current = await start();
        await whole();
      },
    };
  };
  // Without durability, because the cluster's data end with the test.
  const etcd = [
    '--data-dir',
    join(folder, 'etcd'),
    '--unsafe-no-fsync',
    '--initial-cluster',
    `default=${local(peerPort)}`,
  ];
  const urls = ['listen', 'advertise'].map((verb) => `--${verb}-client-urls=${local(clientPort)}`);
  const peers = ['listen', 'initial-advertise'].map((verb) => `--${verb}-peer-urls=${local(peerPort)}`);
  const store = await daemon('etcd', [...etcd, ...urls, ...peers], 'ready to serve client requests');
  stack.defer(() => store.kill());
  const apiServer = await part('kube-apiserver', [...apiServerWords(pki), ...(args.apiServer ?? [])], apiReady);
  const asSomebody = (name: string): readonly string[] => [
    ...['', 'authentication-', 'authorization-'].map((use) => `--${use}kubeconfig=${pki(`${name}.kubeconfig`)}`),
    '--bind-address=127.0.0.1',
    '--leader-elect=false',
    `--cert-dir=${join(folder, name)}`,
    ...raisedRateLimits,
  ];
  const managing = part('kube-controller-manager', [
    ...asSomebody('controller-manager'),
    '--use-service-account-credentials',
    `--service-account-private-key-file=${pki('accounts.key')}`,
    `--root-ca-file=${authority.certificate}`,
    `--flex-volume-plugin-dir=${join(folder, 'flex')}`,
    ...(args.controllerManager ?? []),
  ]);
  const scheduling = part('kube-scheduler', [...asSomebody('scheduler'), ...(args.scheduler ?? [])]);
  // If one fails, waits for the other one, because it must be stopped, too.
  await Promise.allSettled([managing, scheduling]);
  const [controllerManager, scheduler] = [await managing, await scheduling];
  const all = stack.move();
  return { apiServer, controllerManager, scheduler, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

function apiServerWords(pki: (name: string) => string): readonly string[] {
  return [
    `--etcd-servers=${local(clientPort)}`,
    '--bind-address=0.0.0.0',
    `--advertise-address=${addresses.controlPlane}`,
    `--secure-port=${addresses.apiPort}`,
    `--service-cluster-ip-range=${addresses.services}`,
    `--client-ca-file=${pki('ca.crt')}`,
    `--tls-cert-file=${pki('apiserver.crt')}`,
    `--tls-private-key-file=${pki('apiserver.key')}`,
    '--authorization-mode=Node,RBAC',
    '--enable-admission-plugins=NodeRestriction',
    '--allow-privileged=true',
    '--service-account-issuer=https://kubernetes.default.svc.cluster.local',
    `--service-account-key-file=${pki('accounts.crt')}`,
    `--service-account-signing-key-file=${pki('accounts.key')}`,
    // The names of nodes do not resolve on the control plane.
    '--kubelet-preferred-address-types=InternalIP',
    `--kubelet-client-certificate=${pki('admin.crt')}`,
    `--kubelet-client-key=${pki('admin.key')}`,
    `--kubelet-certificate-authority=${pki('ca.crt')}`,
  ];
}
