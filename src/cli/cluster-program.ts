import type { StowageCommand } from './command.ts';
import { childrenOf } from './command-tree.ts';
import { invalid } from './problem.ts';
import type { MakeAction } from './session.ts';

/** They replace --socket, --url and --token-file. */
export const clusterOptionNames = ['--kubeconfig', '--context', '--namespace', '--account'] as const;

export const addClusterOptions = (program: StowageCommand): StowageCommand =>
  program
    .option('--kubeconfig <file>', 'kubeconfig file (or KUBECONFIG; default: ~/.kube/config)')
    .option('--context <name>', 'context of the kubeconfig (default: the current context)')
    .option('-n, --namespace <name>', 'namespace in which Stowage runs (default: stowage-system)')
    .option(
      '--account <name>',
      'service account in that namespace whose permissions are used (default: stowage-viewer, or stowage-adopter to adopt and take over)',
    );

const onlyOnMachines = 'it runs on a host, and kubectl stowage manages only clusters';
const storesAreObjects = 'the stores of a cluster are Store objects';
const podsMount = 'pods mount volumes through PersistentVolumeClaims';
const kubernetesRbac = 'in a cluster, permissions come from Kubernetes RBAC';

/** Commands that are not available in a cluster, with the reason and the alternative. */
const unsupportedCommands: Readonly<Record<string, readonly [why: string, action: string]>> = {
  up: [onlyOnMachines, 'Run it on the host: stowage up'],
  node: [onlyOnMachines, 'The chart runs it on every node of the cluster.'],
  controller: [onlyOnMachines, 'The chart runs it in the cluster.'],
  keeper: [onlyOnMachines, 'The chart runs it on every node of the cluster.'],
  nfs: [
    onlyOnMachines,
    'Run it on the host: stowage nfs serve; in a cluster, see embeddedNFS in the values of the chart.',
  ],
  mount: [podsMount, 'Reference a PersistentVolumeClaim in a pod.'],
  unmount: [podsMount, 'Delete the pod that uses the volume.'],
  token: [
    kubernetesRbac,
    'Grant a service account permissions in the API group stowage.dev by RBAC, and select it with --account NAME',
  ],
  'store add': [storesAreObjects, 'Apply a Store manifest; see docs/kubernetes.md'],
  'store remove': [storesAreObjects, 'Delete the object: kubectl delete store NAME. Its volumes are not deleted.'],
  'store default': [storesAreObjects, 'Make a StorageClass of the store the default StorageClass of the cluster.'],
  'client upgrade': ['the keepers of a cluster are a DaemonSet', 'kubectl rollout restart daemonset/stowage-keeper'],
};

const adopterAccount = 'stowage-adopter';
/** The default service account of commands that the viewer may not run. */
const defaultAccounts: Readonly<Record<string, string>> = {
  'take-over': adopterAccount,
  'store adopt': adopterAccount,
};

/** Applies the default accounts unless --account is given. */
export function useDefaultAccounts(program: StowageCommand): void {
  program.hook('preAction', (_, command) => {
    const path: string[] = [];
    for (
      let at: StowageCommand | null = command as StowageCommand;
      at !== null && at !== program;
      at = at.parent as StowageCommand | null
    )
      path.unshift(at.name());
    const account = defaultAccounts[path.join(' ')];
    if (account !== undefined && program.opts()['account'] === undefined) program.setOptionValue('account', account);
  });
}

/** Replaces these commands with hidden ones that fail with the reason and the alternative. */
export function refuseMachineCommands(program: StowageCommand, act: MakeAction): void {
  for (const [path, [why, action]] of Object.entries(unsupportedCommands)) {
    const words = path.split(' ');
    const name = words.at(-1) ?? '';
    const parent = words
      .slice(0, -1)
      .reduce((at: StowageCommand, word) => childrenOf(at).find((c) => c.name() === word) ?? at, program);
    const siblings = parent.commands as StowageCommand[];
    const at = siblings.findIndex((child) => child.name() === name);
    const aliases = siblings[at]?.aliases() ?? [];
    if (at >= 0) siblings.splice(at, 1);
    const stub = parent.command(name, { hidden: true }) as StowageCommand;
    stub.isUnsupported = true;
    for (const alias of aliases) stub.alias(alias);
    stub
      .description(`Not available in a cluster: ${why}.`)
      .argument('[words...]')
      .allowUnknownOption()
      .helpOption(false)
      .action(
        act(async () => {
          throw invalid(`'${path}' is not available in a cluster: ${why}`, 'command-not-in-cluster', action);
        }),
      );
  }
}

/** Replaces `stowage` with `kubectl stowage` in examples and actions, except before commands that only run on machines. */
export function programNameRewriter(program: StowageCommand): (text: string) => string {
  const commands = childrenOf(program).flatMap((child) => [child.name(), ...child.aliases()]);
  const words = [...commands, 'help'].map((word) => word.replaceAll('-', '\\-')).join('|');
  const pattern = new RegExp(`(?<![\\w/.-]|kubectl )stowage(?= (?:--?\\w|(?:${words})\\b))`, 'g');
  return (text) => text.replaceAll(pattern, 'kubectl stowage');
}
