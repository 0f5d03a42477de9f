import { Option } from 'commander';
import type { StowageCommand } from './command.ts';
import type { KeeperOptions } from './io.ts';
import type { MakeAction, Session } from './session.ts';

export function addKeeperCommand(program: StowageCommand, act: MakeAction): void {
  program
    .command('keeper')
    .description(
      "Run the keeper of a node's mounts, as the first process of its own unprivileged container. An agent with\n" +
        'STOWAGE_KEEPERS=pod creates the folder of the keeper and connects to it there. After SIGTERM the keeper runs until nothing is mounted.',
    )
    .option('--folder <dir>', "folder of the keeper, the same as the agent's (default: /run/stowage/keepers/host)")
    .option('--pod <uid>', 'UID of its pod, so that a restarted keeper does not take over from a newer keeper')
    .addOption(
      new Option(
        '--check <what>',
        'check the running keeper: alive (it responds) or ready (it has taken over all mounts)',
      ).choices(['alive', 'ready']),
    )
    .example('stowage keeper --pod "$POD_UID"', 'in a pod of a DaemonSet')
    .example('stowage keeper --check ready', 'has the keeper taken over from its predecessor?')
    .action(act((session: Session, options: KeeperOptions) => session.services.keeper(options)));
}
