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
  readonly waitForApi: () => Promise<void>;
  readonly signal: AbortSignal;
}

const etcdClientPort = 2379;
const etcdPeerPort = 2380;
const loopbackUrl = (port: number): string => `http://127.0.0.1:${port}`;
/** Raises the client-side rate limits, which a benchmark would measure otherwise. */
const raisedRateLimits = ['--kube-api-qps=500', '--kube-api-burst=1000'];

/**
 * Starts the control plane. Requires the certificate `apiserver`, and kubeconfigs for `controller-manager` and
 * `scheduler`.
 */
export async function startControlPlane(options: ControlPlaneOptions): Promise<ControlPlane> {
  const { folder, bin, network, authority, args, waitForApi: apiReady, signal } = options;
  const pki = (name: string): string => join(folder, 'pki', name);
  await using stack = new AsyncDisposableStack();
  for (const name of ['etcd', 'flex']) await mkdir(join(folder, name), { mode: 0o700 });
  const startProgramDaemon = (name: string, words: readonly string[], ready: string): Promise<Daemon> =>
    startDaemon({
      command: [...network.inside, join(bin, name), ...words],
      logFile: join(folder, 'log', name),
      isReady: (log) => log.includes(ready),
      signal,
    });
  const startProgram = async (
    name: string,
    words: readonly string[],
    waitUntilComplete = async () => {},
  ): Promise<ControlPlaneProgram> => {
    const start = (): Promise<Daemon> => startProgramDaemon(name, words, 'Serving securely');
    let current = await start();
    stack.defer(() => current.kill());
    await waitUntilComplete();
    return {
      stop: () => current.kill(),
      freeze: () => current.freeze(),
      thaw: () => current.thaw(),
      start: async () => {
        current = await start();
        await waitUntilComplete();
      },
    };
  };
  // Without durability, because the cluster's data end with the test.
  const etcd = [
    '--data-dir',
    join(folder, 'etcd'),
    '--unsafe-no-fsync',
    '--initial-cluster',
    `default=${loopbackUrl(etcdPeerPort)}`,
  ];
  const urls = ['listen', 'advertise'].map((verb) => `--${verb}-client-urls=${loopbackUrl(etcdClientPort)}`);
  const peers = ['listen', 'initial-advertise'].map((verb) => `--${verb}-peer-urls=${loopbackUrl(etcdPeerPort)}`);
  const store = await startProgramDaemon('etcd', [...etcd, ...urls, ...peers], 'ready to serve client requests');
  stack.defer(() => store.kill());
  const apiServer = await startProgram('kube-apiserver', [...apiServerArgs(pki), ...(args.apiServer ?? [])], apiReady);
  const commonArgs = (name: string): readonly string[] => [
    ...['', 'authentication-', 'authorization-'].map((use) => `--${use}kubeconfig=${pki(`${name}.kubeconfig`)}`),
    '--bind-address=127.0.0.1',
    '--leader-elect=false',
    `--cert-dir=${join(folder, name)}`,
    ...raisedRateLimits,
  ];
  const managerStart = startProgram('kube-controller-manager', [
    ...commonArgs('controller-manager'),
    '--use-service-account-credentials',
    `--service-account-private-key-file=${pki('accounts.key')}`,
    `--root-ca-file=${authority.certificate}`,
    `--flex-volume-plugin-dir=${join(folder, 'flex')}`,
    ...(args.controllerManager ?? []),
  ]);
  const schedulerStart = startProgram('kube-scheduler', [...commonArgs('scheduler'), ...(args.scheduler ?? [])]);
  // If one fails, waits for the other one, because it must be stopped, too.
  await Promise.allSettled([managerStart, schedulerStart]);
  const [controllerManager, scheduler] = [await managerStart, await schedulerStart];
  const resources = stack.move();
  return { apiServer, controllerManager, scheduler, [Symbol.asyncDispose]: () => resources.disposeAsync() };
}

function apiServerArgs(pki: (name: string) => string): readonly string[] {
  return [
    `--etcd-servers=${loopbackUrl(etcdClientPort)}`,
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
