import { addClientCommands } from './client.ts';
import {
  addClusterOptions,
  programNameRewriter,
  refuseMachineCommands,
  useDefaultAccounts,
} from './cluster-program.ts';
import { StowageCommand } from './command.ts';
import { firstSentence } from './command-tree.ts';
import { addCompletionCommands } from './completion.ts';
import { addControllerCommands } from './controller.ts';
import { addEventCommands } from './events.ts';
import { exitCodeLines, exitCodeTopic } from './exit-codes.ts';
import type { ProgramServices } from './io.ts';
import { addKeeperCommand } from './keeper.ts';
import { addMountCommands } from './mount.ts';
import { addNfsCommands } from './nfs.ts';
import { addOperationCommands } from './operations.ts';
import { invalid } from './problem.ts';
import { addServerCommands } from './server-commands.ts';
import type { MakeAction } from './session.ts';
import { addStatusCommands } from './status.ts';
import { addStoreCommands } from './store.ts';
import { addTakeOverCommand } from './take-over.ts';
import { escapeControls } from './text.ts';
import { addTokenCommands } from './token.ts';
import { addVolumeCommands } from './volume.ts';

/** The options that may stand before or after any command. */
export interface GlobalOptions {
  readonly json?: boolean;
  readonly quiet?: boolean;
  readonly color: boolean;
  readonly socket?: string;
  readonly url?: string;
  readonly tokenFile?: string;
  readonly timeout?: string;
  /** This and the next three: only for `kubectl stowage`. */
  readonly kubeconfig?: string;
  readonly context?: string;
  readonly namespace?: string;
  readonly account?: string;
}

/** The whole tree of commands. `act` makes the actions, so the tree can be read without running anything. */
export function createProgram(
  services: Pick<ProgramServices, 'version' | 'program' | 'cluster'>,
  act: MakeAction,
): StowageCommand {
  const inCluster = services.cluster !== undefined;
  const program = new StowageCommand(services.program)
    .description('Storage for containers with nothing installed on the host.')
    .version(services.version, '-V, --version', 'print the version')
    .option('--json', 'print objects as JSON, and errors as JSON to standard error')
    .option('-q, --quiet', 'print only ids, names or problems')
    .option('--no-color', 'disable colors, like NO_COLOR');
  if (inCluster) addClusterOptions(program);
  else addServerOptions(program);
  program
    .option('--timeout <duration>', 'how long to wait for a response (default: 60s; unlimited for long operations)')
    .helpOption('-h, --help', 'show help')
    .configureHelp({
      showGlobalOptions: true,
      subcommandDescription: (command) => firstSentence(command.description()),
    })
    .helpCommand(false)
    .exitOverride();
  if (inCluster)
    program
      .example('stowage status', 'what runs in the cluster')
      .example('stowage volume list', 'volumes of all stores and nodes')
      .example('stowage mounts', 'the mounts of all nodes, and their users');
  else
    program
      .example('stowage up', 'run the server')
      .example('stowage volume create demo --size 1G', 'a volume on the default store')
      .example('stowage mount demo /mnt/demo', 'mount the volume at a path');
  addServerCommands(program, act);
  addControllerCommands(program, act);
  addStatusCommands(program, act);
  addStoreCommands(program, act);
  addVolumeCommands(program, act);
  addMountCommands(program, act);
  addClientCommands(program, act);
  addNfsCommands(program, act);
  addKeeperCommand(program, act);
  addOperationCommands(program, act);
  addEventCommands(program, act);
  addTokenCommands(program, act);
  if (inCluster) addTakeOverCommand(program, act);
  addCompletionCommands(program, act, inCluster);
  addHelp(program, act);
  if (inCluster) {
    refuseMachineCommands(program, act);
    useDefaultAccounts(program);
    program.rewriteProgramName = programNameRewriter(program);
  }
  program.addHelpText('after', `\n${exitCodeLines().join('\n')}`);
  return program;
}

const addServerOptions = (program: StowageCommand): StowageCommand =>
  program
    .option('--socket <path>', 'Unix socket of the server (or STOWAGE_SOCKET)')
    .option('--url <url>', 'URL of the server, instead of the socket (or STOWAGE_URL)')
    .option('--token-file <file>', 'file with the token for --url (or the token itself in STOWAGE_TOKEN)');

function addHelp(program: StowageCommand, act: MakeAction): void {
  program
    .command('help')
    .description('Show help for a command, or: stowage help exit-codes')
    .argument('[topic...]', 'a command, or exit-codes')
    .example('stowage help volume create', 'the same as stowage volume create --help')
    .example('stowage help exit-codes', 'what each exit status means')
    .action(
      act(async ({ out }, topic: readonly string[]) => {
        if (topic.length === 1 && topic[0] === 'exit-codes')
          return exitCodeTopic().forEach((line) => void out.line(line));
        const command = topic.reduce<StowageCommand | undefined>((at, word) => at && findCommand(at, word), program);
        if (command !== undefined) return command.outputHelp();
        throw invalid(`unknown command '${escapeControls(topic.join(' '))}'`, 'usage', 'See: stowage --help');
      }),
    );
}

const findCommand = (command: StowageCommand, word: string): StowageCommand | undefined =>
  (command.commands as StowageCommand[]).find((child) => child.name() === word || child.aliases().includes(word));
