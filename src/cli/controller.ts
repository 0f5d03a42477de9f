import { Option } from 'commander';
import type { StowageCommand } from './command.ts';
import type { ControllerOptions } from './io.ts';
import type { MakeAction, Session } from './session.ts';

/** `stowage controller`, which runs as a Deployment in a cluster. */
export function addControllerCommands(program: StowageCommand, act: MakeAction): void {
  program
    .command('controller')
    .description(
      'Run the controller of a Kubernetes cluster, until Ctrl-C. It creates the volumes of claims, on the stores that Store\n' +
        'objects define. If several controllers run, one of them leads.',
    )
    .option('--state <dir>', 'folder for state that may be lost')
    .option('--kubeconfig <file>', 'how to reach the cluster (default: as the pod it runs in)')
    .option(
      '--namespace <name>',
      "namespace of its Lease, certificate and address (default: the pod's or the file's own)",
    )
    .option('--health <address>', 'host:port for /healthz and /readyz, :port for every address, or none (default)')
    .option(
      '--listen <address>',
      'host:port for agents and users, by HTTPS, :port for every address, or none (default); POD_IP is the address that others use',
    )
    .option(
      '--tls-secret <name>',
      'Secret with a certificate that another program maintains (default: its own certificate)',
    )
    .addOption(
      new Option('--log-level <level>', 'how much to log').choices(['debug', 'info', 'warn', 'error', 'silent']),
    )
    .example('stowage controller --health :8081 --listen :8443', 'in a pod')
    .example('stowage controller --kubeconfig ~/.kube/config --namespace stowage', 'from outside the cluster')
    .action(act((session: Session, options: ControllerOptions) => session.services.controller(options)));
}
