import { misconfigured } from './errors.ts';

export interface ClusterEntry {
  readonly server: string;
  readonly caData: string | undefined;
  readonly caFile: string | undefined;
  readonly serverName: string | undefined;
  readonly insecure: boolean;
}

export interface ExecEntry {
  readonly apiVersion: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly installHint: string;
  readonly wantsCluster: boolean;
}

export interface UserEntry {
  readonly certData: string | undefined;
  readonly certFile: string | undefined;
  readonly keyData: string | undefined;
  readonly keyFile: string | undefined;
  readonly token: string | undefined;
  readonly tokenFile: string | undefined;
  readonly username: string | undefined;
  readonly password: string | undefined;
  readonly exec: ExecEntry | undefined;
}

type Entry = Readonly<Record<string, unknown>>;

/** Resolves one context of a kubeconfig. Messages name fields and entries, never values. */
export function resolveContext(
  config: unknown,
  context?: string,
): { readonly cluster: ClusterEntry; readonly user: UserEntry; readonly namespace: string } {
  const whole = asEntry(config, 'the kubeconfig');
  const name = context ?? text(whole, 'current-context', 'the kubeconfig');
  if (name === undefined) throw misconfigured('the kubeconfig has no current-context: name one');
  const chosen = findNamed(whole, 'contexts', 'context', name);
  const where = `the context “${name}” of the kubeconfig`;
  const cluster = text(chosen, 'cluster', where);
  if (cluster === undefined) throw misconfigured(`${where} names no cluster`);
  const user = text(chosen, 'user', where);
  return {
    cluster: clusterOf(findNamed(whole, 'clusters', 'cluster', cluster), `the cluster “${cluster}” of the kubeconfig`),
    user: userOf(
      user === undefined ? {} : findNamed(whole, 'users', 'user', user),
      `the user “${user ?? ''}” of the kubeconfig`,
    ),
    namespace: text(chosen, 'namespace', where) ?? 'default',
  };
}

function clusterOf(entry: Entry, where: string): ClusterEntry {
  if (text(entry, 'proxy-url', where) !== undefined)
    throw misconfigured(
      `${where} has a proxy-url, and proxies are not supported: name a server that is reached directly`,
    );
  const server = text(entry, 'server', where);
  if (server === undefined) throw misconfigured(`${where} names no server`);
  const caData = text(entry, 'certificate-authority-data', where);
  const caFile = text(entry, 'certificate-authority', where);
  const insecure = flag(entry, 'insecure-skip-tls-verify', where);
  if (insecure && (caData ?? caFile) !== undefined)
    throw misconfigured(`${where} has both a certificate authority and insecure-skip-tls-verify: remove one of them`);
  return { server, caData, caFile, serverName: text(entry, 'tls-server-name', where), insecure };
}

/** Ignoring these fields would give the client more or fewer rights than the file says. */
const unsupported = ['auth-provider', 'as', 'as-uid', 'as-groups', 'as-user-extra'];

function userOf(entry: Entry, where: string): UserEntry {
  const found = unsupported.find((field) => entry[field] !== undefined);
  if (found !== undefined) throw misconfigured(`${where} has “${found}”, which is not supported`);
  return {
    certData: text(entry, 'client-certificate-data', where),
    certFile: text(entry, 'client-certificate', where),
    keyData: text(entry, 'client-key-data', where),
    keyFile: text(entry, 'client-key', where),
    token: text(entry, 'token', where),
    tokenFile: text(entry, 'tokenFile', where),
    username: text(entry, 'username', where),
    password: text(entry, 'password', where),
    exec: entry['exec'] === undefined ? undefined : execOf(asEntry(entry['exec'], `“exec” of ${where}`), where),
  };
}

const supportedVersions = ['client.authentication.k8s.io/v1', 'client.authentication.k8s.io/v1beta1'];

function execOf(entry: Entry, user: string): ExecEntry {
  const where = `“exec” of ${user}`;
  const command = text(entry, 'command', where);
  if (command === undefined) throw misconfigured(`${where} names no command`);
  const apiVersion = text(entry, 'apiVersion', where) ?? '';
  if (!supportedVersions.includes(apiVersion))
    throw misconfigured(`${where} wants another apiVersion than ${supportedVersions.join(' or ')}`);
  if (text(entry, 'interactiveMode', where) === 'Always')
    throw misconfigured(`${where} requires interaction, which is not possible here`);
  const args = listIn(entry, 'args', where);
  if (!args.every((one) => typeof one === 'string')) throw misconfigured(`“args” in ${where} is not a list of texts`);
  return {
    apiVersion,
    command,
    args,
    env: Object.fromEntries(
      listIn(entry, 'env', where).map((one) => {
        const variable = asEntry(one, `“env” in ${where}`);
        return [text(variable, 'name', where) ?? '', text(variable, 'value', where) ?? ''];
      }),
    ),
    installHint: text(entry, 'installHint', where) ?? '',
    wantsCluster: flag(entry, 'provideClusterInfo', where),
  };
}

function findNamed(config: Entry, list: string, field: string, name: string): Entry {
  const found = listIn(config, list, 'the kubeconfig')
    .map((one) => asEntry(one, `an entry of “${list}” in the kubeconfig`))
    .find((one) => one['name'] === name);
  if (found === undefined) throw misconfigured(`the kubeconfig has no ${field} “${name}”`);
  return asEntry(found[field] ?? {}, `the ${field} “${name}” of the kubeconfig`);
}

function asEntry(value: unknown, what: string): Entry {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw misconfigured(`${what} is not a map`);
  return value as Entry;
}

/** Like kubectl, treats an empty value as missing. */
function text(entry: Entry, field: string, where: string): string | undefined {
  const value = entry[field];
  if (value === undefined || value === null || value === '') return undefined;
  if (typeof value !== 'string') throw misconfigured(`“${field}” in ${where} is not a text`);
  return value;
}

function flag(entry: Entry, field: string, where: string): boolean {
  const value = entry[field] ?? false;
  if (typeof value !== 'boolean') throw misconfigured(`“${field}” in ${where} is not true or false`);
  return value;
}

function listIn(entry: Entry, field: string, where: string): readonly unknown[] {
  const value = entry[field] ?? [];
  if (!Array.isArray(value)) throw misconfigured(`“${field}” in ${where} is not a list`);
  return value;
}
