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
  const run = (bare: boolean) =>
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
    .description('Run the server until Ctrl-C. Without a configuration it has one local store.')
    .option('--state <dir>', 'where it keeps its state')
    .option('--listen <address>', 'host:port for the API, or none (default: 127.0.0.1:7878)');
  withCommon(up)
    .option('--nfs [port]', 'also run an NFS server for this machine, and a store named network on it')
    .example('stowage up', 'with the default folders')
    .example('stowage up --nfs', 'with a network store that works immediately')
    .example('stowage up --state ./state --socket ./stowage.sock --listen none', 'all in one folder, no network')
    .action(run(false));
  const node = program
    .command('node')
    .description(
      'Run the server for the container engines of a machine, until Ctrl-C. As up, but with no store besides those that\n' +
        'are added or configured, and with the API on its Unix socket only.',
    )
    .option('--state <dir>', 'where it keeps its state')
    .option('--kubelet <dir>', 'serve a kubelet by CSI and register with it; its root folder, such as /var/lib/kubelet')
    .option('--node-name <name>', 'name of this machine, as in Kubernetes (default: its host name)')
    .option('--kubernetes', 'run as the agent of a node: the stores come from the Store objects of the cluster')
    .option('--kubeconfig <file>', 'with --kubernetes: how to reach the cluster (default: as the pod it runs in)')
    .option('--namespace <name>', "with --kubernetes: Stowage's own (default: the pod's or the file's)")
    .option(
      '--health <address>',
      'with --kubernetes: host:port for /healthz, /readyz and /metrics, :port for every address, or none (default)',
    )
    .option('--metrics <address>', 'with --kubernetes: host:port for /metrics alone, or none (default)');
  withCommon(node)
    .example('stowage node', 'for the Docker and Podman engines that run here')
    .example('stowage node --docker-socket /run/docker.sock --podman-socket none', 'for this one engine')
    .example('stowage node --kubelet /var/lib/kubelet --node-name worker-1', 'for the pods of a node of Kubernetes')
    .example('stowage node --kubernetes', 'the same as a pod of a DaemonSet, with NODE_NAME in its environment')
    .action(run(true));
}

function withCommon(command: StowageCommand): StowageCommand {
  return command
    .option('--config <file>', 'configuration file, or none (default: stowage.yaml in the configuration folder)')
    .addOption(
      new Option('--log-level <level>', 'how much to log').choices(['debug', 'info', 'warn', 'error', 'silent']),
    )
    .option(
      '--plugins <dir>',
      'serve Docker and Podman on sockets in this folder, or none (default: /run/docker/plugins, as root)',
    )
    .option(
      '--csi <dir>',
      'serve CSI drivers on sockets in this folder: file.sock for shared stores, local.sock for the others',
    )
    .option('--csi-registry <dir>', 'register them with a kubelet, on sockets in its plugin registry; with --csi')
    .option(
      '--max-volumes <number>',
      'how many volumes of each CSI driver this machine may have mounted (default: 1000)',
    )
    .option('--docker-socket <path>', "Docker's own socket, or none (default: /run/docker.sock, if it is there)")
    .option(
      '--podman-socket <path>',
      "Podman's own socket, or none (default: /run/podman/podman.sock, if it is there)",
    );
}
