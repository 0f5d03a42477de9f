import { configError } from './errors.ts';

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
  const kubeconfig = asEntry(config, 'the kubeconfig');
  const name = context ?? textField(kubeconfig, 'current-context', 'the kubeconfig');
  if (name === undefined) throw configError('the kubeconfig has no current-context: name one');
  const contextEntry = findNamed(kubeconfig, 'contexts', 'context', name);
  const where = `the context “${name}” of the kubeconfig`;
  const cluster = textField(contextEntry, 'cluster', where);
  if (cluster === undefined) throw configError(`${where} names no cluster`);
  const user = textField(contextEntry, 'user', where);
  return {
    cluster: clusterOf(
      findNamed(kubeconfig, 'clusters', 'cluster', cluster),
      `the cluster “${cluster}” of the kubeconfig`,
    ),
    user: userOf(
      user === undefined ? {} : findNamed(kubeconfig, 'users', 'user', user),
      `the user “${user ?? ''}” of the kubeconfig`,
    ),
    namespace: textField(contextEntry, 'namespace', where) ?? 'default',
  };
}

function clusterOf(entry: Entry, where: string): ClusterEntry {
  if (textField(entry, 'proxy-url', where) !== undefined)
    throw configError(
      `${where} has a proxy-url, and proxies are not supported: name a server that is reached directly`,
    );
  const server = textField(entry, 'server', where);
  if (server === undefined) throw configError(`${where} names no server`);
  const caData = textField(entry, 'certificate-authority-data', where);
  const caFile = textField(entry, 'certificate-authority', where);
  const insecure = flagField(entry, 'insecure-skip-tls-verify', where);
  if (insecure && (caData ?? caFile) !== undefined)
    throw configError(`${where} has both a certificate authority and insecure-skip-tls-verify: remove one of them`);
  return { server, caData, caFile, serverName: textField(entry, 'tls-server-name', where), insecure };
}

/** Ignoring these fields would give the client more or fewer rights than the file says. */
const unsupportedUserFields = ['auth-provider', 'as', 'as-uid', 'as-groups', 'as-user-extra'];

function userOf(entry: Entry, where: string): UserEntry {
  const found = unsupportedUserFields.find((field) => entry[field] !== undefined);
  if (found !== undefined) throw configError(`${where} has “${found}”, which is not supported`);
  return {
    certData: textField(entry, 'client-certificate-data', where),
    certFile: textField(entry, 'client-certificate', where),
    keyData: textField(entry, 'client-key-data', where),
    keyFile: textField(entry, 'client-key', where),
    token: textField(entry, 'token', where),
    tokenFile: textField(entry, 'tokenFile', where),
    username: textField(entry, 'username', where),
    password: textField(entry, 'password', where),
    exec: entry['exec'] === undefined ? undefined : execOf(asEntry(entry['exec'], `“exec” of ${where}`), where),
  };
}

const supportedVersions = ['client.authentication.k8s.io/v1', 'client.authentication.k8s.io/v1beta1'];

function execOf(entry: Entry, user: string): ExecEntry {
  const where = `“exec” of ${user}`;
  const command = textField(entry, 'command', where);
  if (command === undefined) throw configError(`${where} names no command`);
  const apiVersion = textField(entry, 'apiVersion', where) ?? '';
  if (!supportedVersions.includes(apiVersion))
    throw configError(`${where} wants another apiVersion than ${supportedVersions.join(' or ')}`);
  if (textField(entry, 'interactiveMode', where) === 'Always')
    throw configError(`${where} requires interaction, which is not possible here`);
  const args = listField(entry, 'args', where);
  if (!args.every((one) => typeof one === 'string')) throw configError(`“args” in ${where} is not a list of texts`);
  return {
    apiVersion,
    command,
    args,
    env: Object.fromEntries(
      listField(entry, 'env', where).map((one) => {
        const variable = asEntry(one, `“env” in ${where}`);
        return [textField(variable, 'name', where) ?? '', textField(variable, 'value', where) ?? ''];
      }),
    ),
    installHint: textField(entry, 'installHint', where) ?? '',
    wantsCluster: flagField(entry, 'provideClusterInfo', where),
  };
}

function findNamed(config: Entry, list: string, field: string, name: string): Entry {
  const found = listField(config, list, 'the kubeconfig')
    .map((one) => asEntry(one, `an entry of “${list}” in the kubeconfig`))
    .find((one) => one['name'] === name);
  if (found === undefined) throw configError(`the kubeconfig has no ${field} “${name}”`);
  return asEntry(found[field] ?? {}, `the ${field} “${name}” of the kubeconfig`);
}

function asEntry(value: unknown, what: string): Entry {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw configError(`${what} is not a map`);
  return value as Entry;
}

/** Like kubectl, treats an empty value as missing. */
function textField(entry: Entry, field: string, where: string): string | undefined {
  const value = entry[field];
  if (value === undefined || value === null || value === '') return undefined;
  if (typeof value !== 'string') throw configError(`“${field}” in ${where} is not a text`);
  return value;
}

function flagField(entry: Entry, field: string, where: string): boolean {
  const value = entry[field] ?? false;
  if (typeof value !== 'boolean') throw configError(`“${field}” in ${where} is not true or false`);
  return value;
}

function listField(entry: Entry, field: string, where: string): readonly unknown[] {
  const value = entry[field] ?? [];
  if (!Array.isArray(value)) throw configError(`“${field}” in ${where} is not a list`);
  return value;
}
