import { readFile } from 'node:fs/promises';
import { isAbsolute, join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import type { Identity, KubeAccess } from './access.ts';
import { configError } from './errors.ts';
import { type Credential, type CredentialPlugin, createExecCredential } from './exec-credential.ts';
import { type ClusterEntry, resolveContext, type UserEntry } from './kubeconfig.ts';
import { createReloadedFile, fixedText, type ReloadableText } from './reloaded-file.ts';

type Environment = Readonly<Record<string, string | undefined>>;

export interface InClusterOptions {
  readonly env: Environment;
  readonly clock: Clock;
  /** The directory of the mounted service account. */
  readonly folder?: string;
}

/** Access from within a pod. The kubelet renews the files of the service account's token and CA certificate. */
export async function inCluster({
  env,
  clock,
  folder = '/var/run/secrets/kubernetes.io/serviceaccount',
}: InClusterOptions): Promise<KubeAccess> {
  const { KUBERNETES_SERVICE_HOST: host = '', KUBERNETES_SERVICE_PORT: port = '' } = env;
  if (host === '' || port === '')
    throw configError('this is not a pod of Kubernetes: KUBERNETES_SERVICE_HOST and _PORT are not set');
  const namespace = await readRequired(join(folder, 'namespace'), "the pod's service account has no token mounted");
  const token = createReloadedFile(join(folder, 'token'), clock);
  const ca = createReloadedFile(join(folder, 'ca.crt'), clock);
  return {
    server: new URL(`https://${host.includes(':') ? `[${host}]` : host}:${port}`),
    namespace: namespace.trim(),
    identity: reuseIfUnchanged(async (_signal, isRefused) => {
      const [bearer, authority] = await Promise.all([token(isRefused), ca(isRefused)]);
      return { authorization: `Bearer ${bearer.trim()}`, tls: { ca: authority } };
    }),
  };
}

export interface KubeconfigOptions {
  /** The parsed kubeconfig; the caller parses the YAML. */
  readonly config: unknown;
  /** The directory of the kubeconfig; relative paths start there. */
  readonly folder: string;
  readonly clock: Clock;
  /** For credential plugins. */
  readonly env: Environment;
  /** Default: the current context. */
  readonly context?: string | undefined;
}

export async function fromKubeconfig({ config, folder, clock, env, context }: KubeconfigOptions): Promise<KubeAccess> {
  const { cluster, user, namespace } = resolveContext(config, context);
  const resolvePath = (path: string): string => (isAbsolute(path) ? path : join(folder, path));
  const loadPem = (inline: string | undefined, path: string | undefined): ReloadableText | undefined => {
    if (inline !== undefined) return fixedText(Buffer.from(inline, 'base64').toString('utf8'));
    return path === undefined ? undefined : createReloadedFile(resolvePath(path), clock);
  };
  const ca = loadPem(cluster.caData, cluster.caFile);
  const cert = loadPem(user.certData, user.certFile);
  const key = loadPem(user.keyData, user.keyFile);
  const token = user.tokenFile === undefined ? undefined : createReloadedFile(resolvePath(user.tokenFile), clock);
  const plugin = user.exec === undefined ? undefined : createExecCredential(pluginOf(user.exec, cluster, ca), clock);

  function pluginOf(
    exec: NonNullable<UserEntry['exec']>,
    from: ClusterEntry,
    authority?: ReloadableText,
  ): CredentialPlugin {
    // A bare name is searched on the PATH, a path is relative to the kubeconfig.
    const command = exec.command.includes('/') ? resolvePath(exec.command) : exec.command;
    return { ...exec, command, environment: env, server: from.server, ca: authority };
  }

  return {
    server: serverOf(cluster.server),
    namespace,
    identity: reuseIfUnchanged(async (signal, isRefused) => {
      const issued = await plugin?.(signal, isRefused);
      const [caCertificate, certificate, privateKey, fileToken] = await Promise.all(
        [ca, cert, key, token].map((text) => text?.(isRefused)),
      );
      return identityOf({ cluster, user, issued, caCertificate, certificate, privateKey, fileToken });
    }),
  };
}

interface CredentialSources {
  readonly cluster: ClusterEntry;
  readonly user: UserEntry;
  readonly issued: Credential | undefined;
  readonly caCertificate: string | undefined;
  readonly certificate: string | undefined;
  readonly privateKey: string | undefined;
  readonly fileToken: string | undefined;
}

function identityOf({
  cluster,
  user,
  issued,
  caCertificate,
  certificate,
  privateKey,
  fileToken,
}: CredentialSources): Identity {
  // Same precedence as kubectl: the kubeconfig before the plugin, a token file before a token.
  const token = fileToken?.trim() ?? user.token ?? issued?.token;
  const [cert, key] = [certificate ?? issued?.cert, privateKey ?? issued?.key];
  const basic =
    user.username === undefined
      ? undefined
      : `Basic ${Buffer.from(`${user.username}:${user.password ?? ''}`).toString('base64')}`;
  const authorization = token === undefined ? basic : `Bearer ${token}`;
  return {
    ...(authorization === undefined ? {} : { authorization }),
    tls: {
      ...(caCertificate === undefined ? {} : { ca: caCertificate }),
      ...(cert === undefined ? {} : { cert }),
      ...(key === undefined ? {} : { key }),
      ...(cluster.serverName === undefined ? {} : { servername: cluster.serverName }),
      ...(cluster.insecure ? { rejectUnauthorized: false } : {}),
    },
  };
}

function serverOf(text: string): URL {
  const url = URL.parse(text);
  if (url === null || (url.protocol !== 'https:' && url.protocol !== 'http:'))
    throw configError('the kubeconfig names a server that is not an https:// address');
  return url;
}

/** Returns the same object while the identity does not change. */
function reuseIfUnchanged(
  getIdentity: (signal: AbortSignal, isRefused: boolean) => Promise<Identity>,
): KubeAccess['identity'] {
  let last: { readonly identity: Identity; readonly text: string } | undefined;
  return async (signal, refused) => {
    // Another call may have fetched a newer identity meanwhile.
    const isStale = refused !== undefined && refused === last?.identity;
    const identity = await getIdentity(signal, isStale);
    const text = JSON.stringify(identity);
    if (last?.text !== text) last = { identity, text };
    return last.identity;
  };
}

async function readRequired(path: string, why: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    throw configError(`${path} cannot be read: ${why}`, cause);
  }
}
