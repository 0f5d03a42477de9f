import { execFile } from 'node:child_process';
import { program } from '../stowage.ts';
import { type ChartGround, namespace } from './chart-ground.ts';

const account = 'checker';

/** As docs/kubernetes.md shows it: an account that may check stores from the network of any pod. */
export const checkerAccount: readonly object[] = [
  { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: account, namespace } },
  {
    ...{ apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'ClusterRole', metadata: { name: account } },
    rules: [
      { apiGroups: ['stowage.dev'], resources: ['stores'], verbs: ['get'] },
      { apiGroups: ['stowage.dev'], resources: ['stores/check'], verbs: ['create', 'update'] },
    ],
  },
  {
    ...{ apiVersion: 'rbac.authorization.k8s.io/v1', kind: 'ClusterRoleBinding', metadata: { name: account } },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: account },
    subjects: [{ kind: 'ServiceAccount', name: account, namespace }],
  },
];

/** A pod without volumes that does nothing. */
export const idlePod = (name: string, nodeName: string, image: string): object => ({
  ...{ apiVersion: 'v1', kind: 'Pod', metadata: { name, namespace: 'default' } },
  spec: {
    ...{ nodeName, terminationGracePeriodSeconds: 0 },
    containers: [{ name: 'main', image, imagePullPolicy: 'IfNotPresent', command: ['sleep', '100000'] }],
  },
});

export interface CheckOutcome {
  readonly status: number;
  readonly body: {
    readonly ok?: boolean;
    readonly from?: string;
    readonly steps?: readonly { readonly step: string; readonly ok: boolean; readonly detail: string }[];
  };
  readonly stderr: string;
}

/** `kubectl stowage store check STORE --from PLACE`. */
export async function checkFrom({ cluster }: ChartGround, store: string, from: string): Promise<CheckOutcome> {
  const words = ['--account', account, '--json', 'store', 'check', store, '--from', from];
  const env = { PATH: process.env['PATH'], HOME: cluster.folder, KUBECONFIG: cluster.kubeconfig };
  const { promise, resolve } = Promise.withResolvers<CheckOutcome>();
  execFile(program.replace(/stowage$/, 'kubectl-stowage'), words, { env, timeout: 60_000 }, (error, stdout, stderr) => {
    const status = error === null ? 0 : typeof error.code === 'number' ? error.code : -1;
    resolve({ status, body: stdout === '' ? {} : JSON.parse(stdout), stderr });
  });
  return await promise;
}
