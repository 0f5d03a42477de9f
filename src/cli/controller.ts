import { Option } from 'commander';
import type { StowageCommand } from './command.ts';
import type { ControllerOptions } from './io.ts';
import type { MakeAction, Session } from './session.ts';

/** `stowage controller`, which runs as a Deployment in a cluster. */
export function addControllerCommands(program: StowageCommand, act: MakeAction): void {
  program
    .command('controller')
    .description(
      'Run the controller of a Kubernetes cluster until Ctrl-C. It provisions the volumes of PersistentVolumeClaims on the stores\n' +
        'that Store objects define. If several controllers run, one is the leader.',
    )
    .option('--state <dir>', 'folder for disposable state')
    .option('--kubeconfig <file>', 'kubeconfig file (default: the service account of the pod)')
    .option(
      '--namespace <name>',
      'namespace of its Lease, certificate and address (default: the namespace of the pod or of the kubeconfig)',
    )
    .option('--health <address>', 'host:port of /healthz and /readyz, :port for all addresses, or none (default)')
    .option(
      '--listen <address>',
      'host:port of the HTTPS server for agents and users, :port for all addresses, or none (default); POD_IP is the advertised address',
    )
    .option(
      '--tls-secret <name>',
      'Secret with a certificate that another program renews (default: the controller issues its own)',
    )
    .addOption(new Option('--log-level <level>', 'log level').choices(['debug', 'info', 'warn', 'error', 'silent']))
    .example('stowage controller --health :8081 --listen :8443', 'in a pod')
    .example('stowage controller --kubeconfig ~/.kube/config --namespace stowage', 'from outside the cluster')
    .action(act((session: Session, options: ControllerOptions) => session.services.controller(options)));
}
