import { Option } from 'commander';
import type { StowageCommand } from './command.ts';
import type { KeeperOptions } from './io.ts';
import type { MakeAction, Session } from './session.ts';

export function addKeeperCommand(program: StowageCommand, act: MakeAction): void {
  program
    .command('keeper')
    .description(
      'Run what keeps the mounts of a machine, as the first process of a container of its own, without any rights. An agent that runs with\n' +
        'STOWAGE_KEEPERS=pod makes its folder and finds it there. Told to end, it stays for as long as something is mounted.',
    )
    .option('--folder <dir>', 'its folder, the same one as the agent has (default: /run/stowage/keepers/host)')
    .option('--pod <uid>', 'of the pod that it runs in: one that is started again takes nothing from a newer one')
    .addOption(
      new Option('--check <what>', 'ask the one that runs: does it answer, or does it have everything?').choices([
        'alive',
        'ready',
      ]),
    )
    .example('stowage keeper --pod "$POD_UID"', 'in a pod of a DaemonSet')
    .example('stowage keeper --check ready', 'has it taken over from the one before?')
    .action(act((session: Session, options: KeeperOptions) => session.services.keeper(options)));
}
