import { Option } from 'commander';
import type { StowageCommand } from './command.ts';
import type { KeeperOptions } from './io.ts';
import type { MakeAction, Session } from './session.ts';

export function addKeeperCommand(program: StowageCommand, act: MakeAction): void {
  program
    .command('keeper')
    .description(
      "Run the keeper of a machine's mounts, as the first process of its own container, without privileges. An agent that runs with\n" +
        'STOWAGE_KEEPERS=pod creates its folder and finds it there. After SIGTERM it keeps running as long as something is mounted.',
    )
    .option('--folder <dir>', "its folder, the same as the agent's (default: /run/stowage/keepers/host)")
    .option('--pod <uid>', 'UID of its pod, so that a restarted keeper takes nothing from a newer one')
    .addOption(
      new Option(
        '--check <what>',
        'check the running keeper: does it answer, or has it taken over everything?',
      ).choices(['alive', 'ready']),
    )
    .example('stowage keeper --pod "$POD_UID"', 'in a pod of a DaemonSet')
    .example('stowage keeper --check ready', 'has it taken over from its predecessor?')
    .action(act((session: Session, options: KeeperOptions) => session.services.keeper(options)));
}
