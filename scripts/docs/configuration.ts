import { defaultFolders } from '#base/folders.ts';
import { policyOptions } from '#core/store-uri.ts';
import { storeKinds } from '../store-kinds.ts';
import { code, table } from './markdown.ts';
import { literal, nameOf, partOf, partsOf, type Source, walk } from './syntax.ts';

/**
 * One line of help for each key. The generator fails if the program reads a key that is not listed, or does not read a
 * listed one.
 */
const topKeys: Readonly<Record<string, string>> = {
  version: 'the format of the file: `1`',
  default: 'the store for new volumes that name no store',
  listen: '`host:port` for the API, or `none` (default: `127.0.0.1:7878`); `--listen` overrides it; read at start only',
  plugins:
    'the folder for the plugin sockets that Docker and Podman connect to, or `none` (default: `/run/docker/plugins`, if Stowage runs as root and finds an engine); `--plugins` overrides it; read at start only',
  engines:
    'a map from `docker` and `podman` to the socket of that engine, or to `none` (default: `/run/docker.sock` and `/run/podman/podman.sock`, if they exist); `--docker-socket` and `--podman-socket` override it; read at start only',
  stores: 'a map from store names to a URI, or to a map with `uri` and the options below',
  clients:
    'a map from kinds of source to the client that mounts them; so far only `directory: builtin` and `loop: builtin`',
};

const variables: Readonly<Record<string, string>> = {
  STOWAGE_SOCKET:
    'the Unix socket: where `stowage up` listens, and where commands look for the server (`--socket` overrides it)',
  STOWAGE_URL: 'the address of the server, used instead of the socket (`--url` overrides it)',
  STOWAGE_TOKEN: 'the token for that address (`--token-file` overrides it)',
  STOWAGE_KEEPERS:
    'where data paths run. `process`: as processes next to the server; `container`: in containers of their own, and never elsewhere; `pod`: in pods that run `stowage keeper` (default: in containers, if the server itself runs in a container of an engine whose socket it has)',
  STOWAGE_CONTROLLER_TOKEN_FILE:
    'with `stowage node --kubernetes`: the file with the token for the controller (default: `/var/run/secrets/stowage.dev/token`)',
  POD_IP:
    'with `stowage controller --listen`: the address that the leader publishes for agents (default: the address that it listens on, if it is a single one)',
  POD_NAME:
    'with `stowage controller`: the name of its pod; with `--listen`, of the pod with that address (default: the name of the machine)',
  POD_UID:
    'with `stowage controller`: the uid of that pod, by which a restarted container knows that the earlier process has ended. Only one container of a pod may have it (default: none; the controller then waits two minutes for locks on NFS stores that the earlier process left)',
  KUBECONFIG:
    'with `kubectl stowage`: the files with the access to the cluster, separated by colons (default: `~/.kube/config`; `--kubeconfig` overrides it)',
  KUBERNETES_SERVICE_HOST:
    'with `kubectl stowage`: set by Kubernetes in pods; without a kubeconfig, the account of the pod is used',
  NODE_NAME: 'with `stowage node --kubernetes`: the name of the node (`--node-name` overrides it)',
  NO_COLOR: 'if not empty: no colours, as with `--no-color`',
  TERM: '`dumb`: no colours',
  XDG_STATE_HOME: 'for an ordinary user: the state folder is `stowage` below it (default: `~/.local/state`)',
  XDG_RUNTIME_DIR: 'for an ordinary user: the socket is in `stowage` below it (default: the state folder)',
  XDG_CONFIG_HOME: 'for an ordinary user: `stowage.yaml` is in `stowage` below it (default: `~/.config`)',
  HOME: 'the parent of the XDG folders whose variables are not set',
  PATH: 'the folders in which Stowage searches programs such as `mkfs.xfs`, in addition to the usual `sbin` folders',
};

/** Variables that `bin/stowage`, the server or the tests set for internal use. */
const internal = ['NODE_COMPILE_CACHE', 'STOWAGE_PROGRAM', 'STOWAGE_VERSION'];

function refuseDifference(what: string, found: ReadonlySet<string>, known: readonly string[]): void {
  const unknown = [...found].filter((name) => !known.includes(name));
  const gone = known.filter((name) => !found.has(name));
  if (unknown.length + gone.length === 0) return;
  throw new Error(
    `scripts/docs/configuration.ts does not fit the sources. ${what}: new ${unknown.join(', ')}; gone ${gone.join(', ')}`,
  );
}

/** The names in `env['NAME']`, and the XDG variables that a function reads. */
function variablesIn(sources: readonly Source[]): ReadonlySet<string> {
  const found = new Set<string>();
  for (const { program } of sources) {
    for (const [part] of walk(program)) {
      const [first] = partsOf(part['arguments']);
      const isXdg = part.type === 'CallExpression' && nameOf(partOf(part['callee'])) === 'xdg';
      const name =
        part.type === 'MemberExpression' ? literal(partOf(part['property'])) : isXdg ? literal(first) : undefined;
      if (name !== undefined && /^[A-Z][A-Z_]{3,}$/.test(name)) found.add(name);
    }
  }
  return found;
}

function topKeysIn(sources: readonly Source[]): ReadonlySet<string> {
  const config = sources.find(({ path }) => path.endsWith('app/config.ts'));
  for (const [part] of config === undefined ? [] : walk(config.program)) {
    if (part.type !== 'VariableDeclarator' || nameOf(partOf(part['id'])) !== 'topKeys') continue;
    return new Set(partsOf(partOf(part['init'])?.['elements']).map((one) => literal(one) ?? ''));
  }
  throw new Error('src/app/config.ts no longer has a list topKeys');
}

const optionRows = (options: Readonly<Record<string, string>>): string[][] =>
  Object.entries(options).map(([name, help]) => [code(name), help]);

function folderRows(): string[][] {
  const root = defaultFolders({ root: true, home: '', env: {} });
  const user = defaultFolders({ root: false, home: '~', env: {} });
  const rows: readonly (readonly [string, 'state' | 'socket' | 'config'])[] = [
    ['state folder', 'state'],
    ['socket', 'socket'],
    ['configuration folder', 'config'],
  ];
  return rows.map(([what, key]) => [what, code(root[key]), code(user[key])]);
}

/** The names of all settings of users. */
export const configurationNames = (sources: readonly Source[]): readonly string[] => [
  ...[...topKeysIn(sources)].map((key) => `stowage.yaml: ${key}`),
  ...Object.keys(policyOptions).map((option) => `every store: ${option}`),
  ...storeKinds.flatMap(({ scheme, options }) =>
    Object.keys(options).map((option) => `${scheme}:// stores: ${option}`),
  ),
  ...[...variablesIn(sources)].map((name) => `environment: ${name}`),
];

export function configurationPage(sources: readonly Source[]): string {
  refuseDifference('keys of stowage.yaml', topKeysIn(sources), Object.keys(topKeys));
  const found = variablesIn(sources);
  refuseDifference(
    'environment',
    new Set([...found].filter((name) => !internal.includes(name))),
    Object.keys(variables),
  );
  const pairs = (of: Readonly<Record<string, string>>): string[][] => optionRows(of);
  return [
    '# Configuration options',
    '',
    'The guide with examples is [configuration](../configuration.md); the flags of `stowage up` are in [the command line](cli.md#stowage-up).',
    '',
    '## Keys of stowage.yaml',
    '',
    ...table(['Key', 'Meaning'], pairs(topKeys)),
    '',
    '## Options of every store',
    '',
    'Query parameters of the URI, or keys in `stowage.yaml`: both have the same meaning.',
    '',
    ...table(['Option', 'Meaning'], optionRows(policyOptions)),
    '',
    ...storeKinds.flatMap(({ scheme, options }) => [
      `## Options of ${scheme}:// stores`,
      '',
      ...table(['Option', 'Meaning'], optionRows(options)),
      '',
    ]),
    '## Folders',
    '',
    ...table(['', 'As root', 'As an ordinary user'], folderRows()),
    '',
    '## Environment variables',
    '',
    ...table(['Variable', 'Meaning'], pairs(variables)),
    '',
  ].join('\n');
}
