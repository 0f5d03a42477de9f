import type { ConnectionOptions } from 'node:tls';
import { StowageError } from '#core/errors.ts';

/** The command-line options that select the cluster. */
export interface ClusterOptions {
  readonly kubeconfig?: string;
  readonly context?: string;
  /** The namespace of Stowage. */
  readonly namespace?: string;
  /** The service account whose token is requested. */
  readonly account?: string;
}

/** Stowage in a cluster, reached through the API server's service proxy. */
export interface ClusterAddress {
  readonly kind: 'cluster';
  readonly server: URL;
  /** The path of the service proxy, before the paths of Stowage's API. */
  readonly prefix: string;
  /** For the API server, which does not forward it. */
  readonly authorization?: string;
  readonly tls: Pick<ConnectionOptions, 'ca' | 'cert' | 'key' | 'servername' | 'rejectUnauthorized'>;
  /** For Stowage. */
  readonly token: string;
  readonly namespace: string;
  readonly account: string;
}

export const clusterAddressText = ({ server, namespace }: ClusterAddress): string =>
  `Stowage in ${namespace} of ${server.host}`;

/** Converts an error of the API server or its proxy, instead of Stowage: a Status object, or a line of text. */
export function apiServerError(status: number, body: unknown, address: ClusterAddress): StowageError | undefined {
  if (status < 400) return undefined;
  const { kind, message } = (typeof body === 'object' && body !== null ? body : {}) as {
    readonly kind?: unknown;
    readonly message?: unknown;
  };
  const isStatus = kind === 'Status';
  const detail = typeof message === 'string' ? message : `status ${status}`;
  const { namespace } = address;
  const withDetail = (text: string): string => `${text} (${detail.slice(0, 300)})`;
  // Problem documents of Stowage were handled before. Without a leader, the proxy answers 404: the namespace does exist, since the
  // service account in it was found before.
  const isLeaderless = isStatus && status === 404;
  if (status === 502 || status === 503 || status === 504 || isLeaderless)
    return new StowageError(withDetail(`cannot reach a Stowage controller in namespace ${namespace}`), {
      code: 'unavailable',
      reason: 'controller-unreachable',
      action: `Check that a controller is running and holds the Lease: kubectl get pods,leases,service/stowage --namespace ${namespace}; then read its log: kubectl logs deployment/stowage-controller --namespace ${namespace}`,
    });
  if (!isStatus) return undefined;
  if (status === 403)
    return new StowageError(withDetail(`you are not allowed to reach Stowage through the API server`), {
      code: 'denied',
      reason: 'proxy-denied',
      action: `Ask the cluster administrator to bind you to the Role stowage-viewers in ${namespace}. To make changes, its rule for services/proxy (https:stowage:443) also needs the verbs create, patch and delete.`,
    });
  if (status === 401)
    return new StowageError('the API server rejected the credentials of the kubeconfig', {
      code: 'unauthenticated',
      reason: 'kubernetes-refused',
      action: 'Log in to the cluster again, then check: kubectl version',
    });
  return undefined;
}
