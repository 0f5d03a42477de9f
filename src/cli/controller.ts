import { Option } from 'commander';
import type { StowageCommand } from './command.ts';
import type { ControllerOptions } from './io.ts';
import type { MakeAction, Session } from './session.ts';

/** `stowage controller`, which runs as a Deployment in a cluster. */
export function addControllerCommands(program: StowageCommand, act: MakeAction): void {
  program
    .command('controller')
    .description(
      'Run the controller of a Kubernetes cluster, until Ctrl-C: claims become volumes on the stores that Store objects\n' +
        'name. Of several, one leads.',
    )
    .option('--state <dir>', 'folder for state that it can lose')
    .option('--kubeconfig <file>', 'how to reach the cluster (default: as the pod it runs in)')
    .option('--namespace <name>', "where its Lease, certificate and address are (default: the pod's or the file's own)")
    .option('--health <address>', 'host:port for /healthz and /readyz, :port for every address, or none (default)')
    .option(
      '--listen <address>',
      'host:port for agents and users, by HTTPS, :port for every address, or none (default); POD_IP says the address to others',
    )
    .option(
      '--tls-secret <name>',
      'Secret with a certificate that somebody else maintains (default: its own certificate)',
    )
    .addOption(
      new Option('--log-level <level>', 'how much to log').choices(['debug', 'info', 'warn', 'error', 'silent']),
    )
    .example('stowage controller --health :8081 --listen :8443', 'in a pod')
    .example('stowage controller --kubeconfig ~/.kube/config --namespace stowage', 'from outside the cluster')
    .action(act((session: Session, options: ControllerOptions) => session.services.controller(options)));
}
