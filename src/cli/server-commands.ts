import { Option } from 'commander';
import { parseNumberArgument } from './arguments.ts';
import type { StowageCommand } from './command.ts';
import type { UpOptions } from './io.ts';
import type { MakeAction, Session } from './session.ts';

type ServerFlags = Omit<UpOptions, 'nfs' | 'maxVolumes'> & {
  readonly nfs?: string | true;
  readonly maxVolumes?: string;
};

/** `stowage up` and `stowage node`, which run the server. */
export function addServerCommands(program: StowageCommand, act: MakeAction): void {
  const runServer = (bare: boolean) =>
    act((session: Session, { nfs, maxVolumes, ...options }: ServerFlags) => {
      const { socket: given } = program.opts() as { readonly socket?: string };
      const socket = given ?? (session.io.env['STOWAGE_SOCKET'] || undefined);
      return session.services.up({
        ...options,
        ...(bare ? { bare } : {}),
        ...(socket === undefined ? {} : { socket }),
        ...(nfs === undefined ? {} : { nfs: true }),
        ...(maxVolumes === undefined
          ? {}
          : { maxVolumes: parseNumberArgument('--max-volumes', maxVolumes, { from: 1, to: 1_000_000 }) }),
        ...(typeof nfs === 'string' ? { nfsPort: parseNumberArgument('--nfs', nfs, { from: 1, to: 65_535 }) } : {}),
      });
    });
  const up = program
    .command('up')
    .description('Run the server until Ctrl-C. Without a configuration, it has one local store.')
    .option('--state <dir>', 'state folder')
    .option('--listen <address>', 'host:port of the API, or none (default: 127.0.0.1:7878)');
  addCommonOptions(up)
    .option('--nfs [port]', 'also run an NFS server for this host, with a store named network on it')
    .example('stowage up', 'with the default folders')
    .example('stowage up --nfs', 'with an NFS server and a store on it')
    .example(
      'stowage up --state ./state --socket ./stowage.sock --listen none',
      'everything in one folder, without a TCP port',
    )
    .action(runServer(false));
  const node = program
    .command('node')
    .description(
      'Run the server for the container engines or the kubelet of a host until Ctrl-C. Like up, but it has only the stores that\n' +
        'are added or configured, and serves the API only on its Unix socket.',
    )
    .option('--state <dir>', 'state folder')
    .option(
      '--kubelet <dir>',
      'serve the kubelet with this root folder (such as /var/lib/kubelet) over CSI, and register with it',
    )
    .option('--node-name <name>', 'Kubernetes node name of this host (default: the host name)')
    .option('--kubernetes', 'run as the agent of a node, with the stores that the Store objects of the cluster define')
    .option('--kubeconfig <file>', 'with --kubernetes: kubeconfig file (default: the service account of the pod)')
    .option(
      '--namespace <name>',
      'with --kubernetes: namespace of Stowage (default: the namespace of the pod or of the kubeconfig)',
    )
    .option(
      '--health <address>',
      'with --kubernetes: host:port of /healthz, /readyz and /metrics, :port for all addresses, or none (default)',
    )
    .option('--metrics <address>', 'with --kubernetes: host:port of only /metrics, or none (default)');
  addCommonOptions(node)
    .example('stowage node', 'for the Docker and Podman engines of this host')
    .example('stowage node --docker-socket /run/docker.sock --podman-socket none', 'for one engine, at another socket')
    .example('stowage node --kubelet /var/lib/kubelet --node-name worker-1', 'for the pods of a Kubernetes node')
    .example('stowage node --kubernetes', 'as a pod of a DaemonSet, with NODE_NAME in its environment')
    .action(runServer(true));
}

function addCommonOptions(command: StowageCommand): StowageCommand {
  return command
    .option('--config <file>', 'configuration file, or none (default: stowage.yaml in the configuration folder)')
    .addOption(new Option('--log-level <level>', 'log level').choices(['debug', 'info', 'warn', 'error', 'silent']))
    .option(
      '--plugins <dir>',
      'folder for the plugin sockets of Docker and Podman, or none (default: /run/docker/plugins, as root)',
    )
    .option('--csi <dir>', 'folder for the CSI sockets: file.sock for shared stores, local.sock for the others')
    .option(
      '--csi-registry <dir>',
      'with --csi: plugin registry folder of the kubelet, to register the CSI drivers with it',
    )
    .option(
      '--max-volumes <number>',
      'maximum number of mounted volumes of each CSI driver on this host (default: 1000)',
    )
    .option('--docker-socket <path>', 'socket of the Docker API, or none (default: /run/docker.sock, if it exists)')
    .option(
      '--podman-socket <path>',
      'socket of the Podman API, or none (default: /run/podman/podman.sock, if it exists)',
    );
}
