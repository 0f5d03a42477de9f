import { type Clock, systemClock } from '#base/clock.ts';
import type { ClusterAddress, ClusterOptions } from '#cli/cluster-connection.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeAccess } from '#wire/kube/access.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { fromKubeconfig, inCluster } from '#wire/kube/config.ts';
import { KubeError } from '#wire/kube/errors.ts';
import { tokenRequests } from '#wire/kube/resources.ts';
import { readKubeconfigs } from './kubeconfigs.ts';
import { version } from './version.ts';

export interface ClusterConnectionOptions extends ClusterOptions {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly home: string;
  readonly signal: AbortSignal;
}

const service = 'https:stowage:443';
const defaultNamespace = 'stowage-system';
const defaultAccount = 'stowage-viewer';
/** The service accounts of the chart. */
const chartAccounts = [defaultAccount, 'stowage-adopter'];
/** The minimum that Kubernetes allows. */
const tokenLifetimeSeconds = 600;

/** Connects to Stowage through the API server's proxy, as kubectl does, with a short-lived token for Stowage only. */
export async function connectToCluster(options: ClusterConnectionOptions): Promise<ClusterAddress> {
  const clock = systemClock();
  const { namespace = defaultNamespace, account = defaultAccount, signal } = options;
  const access = await accessFor(options, clock);
  const token = await requestToken(access, { namespace, account, clock, signal });
  const { authorization, tls } = await access.identity(signal);
  return {
    kind: 'cluster',
    server: access.server,
    namespace,
    account,
    token,
    tls,
    prefix: `/api/v1/namespaces/${encodeURIComponent(namespace)}/services/${service}/proxy`,
    ...(authorization === undefined ? {} : { authorization }),
  };
}

export async function accessFor(
  { kubeconfig: file, context, env, home }: Omit<ClusterConnectionOptions, 'signal'>,
  clock: Clock,
): Promise<KubeAccess> {
  const config = await readKubeconfigs({ file, env, home });
  if (config === undefined && !env['KUBERNETES_SERVICE_HOST']) throw kubeconfigMissing();
  try {
    if (config === undefined) return await inCluster({ env, clock });
    return await fromKubeconfig({ config, folder: '/', clock, env, context });
  } catch (cause) {
    if (!(cause instanceof KubeError)) throw cause;
    throw new StowageError(cause.message, {
      code: 'invalid',
      reason: 'kubeconfig-unusable',
      action: 'Check the configuration: kubectl config view. To use another context, add --context NAME',
      cause,
    });
  }
}

interface TokenOptions {
  readonly namespace: string;
  readonly account: string;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

async function requestToken(access: KubeAccess, { namespace, account, clock, signal }: TokenOptions): Promise<string> {
  using client = createKubeClient({ access, clock, userAgent: `kubectl-stowage/${version}`, maxSockets: 1 });
  const wanted = {
    apiVersion: 'authentication.k8s.io/v1',
    metadata: {},
    spec: { audiences: ['stowage.dev'], expirationSeconds: tokenLifetimeSeconds },
  };
  try {
    const made = await client.create(tokenRequests, wanted, signal, { namespace, name: account, subresource: 'token' });
    return made.status?.token ?? '';
  } catch (thrown) {
    if (thrown instanceof KubeError) throw tokenRequestError(thrown, access.server, namespace, account);
    throw thrown;
  }
}

function kubeconfigMissing(): StowageError {
  return new StowageError('no kubeconfig found', {
    code: 'invalid',
    reason: 'kubeconfig-missing',
    action: 'Specify a kubeconfig with --kubeconfig FILE or in KUBECONFIG, or create ~/.kube/config',
  });
}

function tokenRequestError(error: KubeError, server: URL, namespace: string, account: string): StowageError {
  const { failure, status, serverMessage: said } = error;
  if (failure === 'canceled')
    return new StowageError('interrupted', { code: 'canceled', reason: 'interrupted', action: '', cause: error });
  if (status === 403)
    return new StowageError(`you are not allowed to request a token for the service account ${namespace}/${account}`, {
      code: 'denied',
      reason: 'token-request-denied',
      action:
        `Ask the cluster administrator to bind you to the Role stowage-viewers in ${namespace}, which allows this for stowage-viewer; ` +
        `for another account, the rule is: resources: ["serviceaccounts/token"], resourceNames: ["${account}"], verbs: ["create"].`,
      cause: error,
    });
  if (status === 404)
    return chartAccounts.includes(account)
      ? notInstalled(namespace, error)
      : new StowageError(`service account ${namespace}/${account} not found`, {
          code: 'not-found',
          reason: 'account-unknown',
          action: `List the accounts: kubectl get serviceaccounts --namespace ${namespace}. The account must be in the namespace of Stowage: --namespace NAME`,
          cause: error,
        });
  if (status === 401)
    return new StowageError(`the API server at ${server.origin} rejected the credentials of the kubeconfig`, {
      code: 'unauthenticated',
      reason: 'kubernetes-refused',
      action: 'Log in to the cluster again, then check: kubectl version',
      cause: error,
    });
  return new StowageError(`the request to the API server at ${server.origin} failed: ${said || error.message}`, {
    code: failure === 'deadline' ? 'deadline' : 'unavailable',
    reason: 'kubernetes-unreachable',
    action: 'Check the connection: kubectl version. Select another cluster with --context NAME.',
    cause: error,
  });
}

const notInstalled = (namespace: string, cause: unknown): StowageError =>
  new StowageError(`Stowage is not installed in namespace ${namespace}`, {
    code: 'not-found',
    reason: 'stowage-not-installed',
    action: 'Specify the namespace of Stowage with --namespace NAME, or install Stowage: see docs/kubernetes.md',
    cause,
  });
