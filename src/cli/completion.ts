import { Argument } from 'commander';
import type {
  MountJson,
  OperationJson,
  StoreJson,
  TokenJson,
  TrashEntryJson,
  VolumeJson,
} from '#front/rest/schemas.ts';
import type { StowageCommand } from './command.ts';
import { type CommandNode, commandNodes } from './command-tree.ts';
import { bashScript } from './completion-bash.ts';
import { fishScript } from './completion-fish.ts';
import { completionFor } from './completion-words.ts';
import { zshScript } from './completion-zsh.ts';
import type { MakeAction, Session } from './session.ts';

const shells: Readonly<Record<string, (nodes: readonly CommandNode[]) => string>> = {
  bash: bashScript,
  zsh: zshScript,
  fish: fishScript,
};

export function addCompletionCommands(program: StowageCommand, act: MakeAction, inCluster: boolean): void {
  const command = program.command('completion');
  if (inCluster) addKubectlCompletion(program, command, act);
  else
    command
      .description('Print a shell completion script. It also completes the names of stores and volumes.')
      .addArgument(new Argument('<shell>', 'name of the shell').choices(Object.keys(shells)))
      .example('source <(stowage completion bash)', 'bash, for this session; put it in ~/.bashrc to keep it')
      .example('stowage completion zsh > "$fpath[1]/_stowage"', 'zsh')
      .example('stowage completion fish > ~/.config/fish/completions/stowage.fish', 'fish')
      .action(
        act(async ({ out }, shell: string) => {
          out.line(shells[shell]?.(commandNodes(program)) ?? '');
        }),
      );
  program.command('__complete', { hidden: true }).argument('<what>').action(act(complete));
}

const listRecentOperations = async ({ client }: Session): Promise<OperationJson[]> =>
  (await client.get<{ items: OperationJson[] }>('/v1/operations', { limit: '50' })).items;

const nameLists: Readonly<Record<string, (session: Session) => Promise<string[]>>> = {
  stores: async ({ client }) => (await client.all<StoreJson>('/v1/stores')).map((store) => store.name),
  volumes: async ({ client }) =>
    // One page is enough for completion.
    (await client.get<{ items: VolumeJson[] }>('/v1/volumes')).items.map((volume) => `${volume.store}/${volume.name}`),
  trash: async ({ client }) =>
    (await client.all<TrashEntryJson>('/v1/trash')).map((entry) => `${entry.store}/${entry.name}`),
  operations: async (session) => (await listRecentOperations(session)).map((operation) => operation.id),
  running: async (session) =>
    (await listRecentOperations(session)).filter(({ state }) => state === 'running').map((operation) => operation.id),
  tokens: async ({ client }) => (await client.all<TokenJson>('/v1/tokens')).map((token) => token.id),
  mounts: async ({ client }) => (await client.all<MountJson>('/v1/mounts')).map((mount) => mount.target),
};

/** kubectl's own completion runs `kubectl_complete-<plugin>` for the arguments of a plugin. */
function addKubectlCompletion(program: StowageCommand, command: StowageCommand, act: MakeAction): void {
  command
    .description('Print a completion program for kubectl; put it on the PATH as kubectl_complete-stowage.')
    .example(
      'stowage completion > ~/.local/bin/kubectl_complete-stowage && chmod +x ~/.local/bin/kubectl_complete-stowage',
      "kubectl's own completion then runs it, in every shell",
    )
    .action(
      act(async ({ out }) => {
        out.line(
          '#!/bin/sh\n# kubectl runs this to complete: kubectl stowage\nexec kubectl-stowage __complete_words -- "$@"',
        );
      }),
    );
  program
    .command('__complete_words', { hidden: true })
    .argument('[words...]')
    .action(
      act(async (session, words: readonly string[]) => {
        const kind = completionFor(commandNodes(program), words);
        const typed = words.at(-1) ?? '';
        const all = kind.kind === 'words' ? kind.words : kind.kind === 'ask' ? await namesOf(session, kind.what) : [];
        for (const word of all) if (word.startsWith(typed)) session.out.line(word);
        // The last line is a Cobra directive: 0 lets the shell complete file names, 4 does not.
        session.out.line(kind.kind === 'files' ? ':0' : ':4');
      }),
    );
}

/** Runs while the user types, so it never prints errors. */
async function complete(session: Session, what: string): Promise<void> {
  for (const name of await namesOf(session, what)) session.out.line(name);
}

async function namesOf(session: Session, what: string): Promise<readonly string[]> {
  const names = (await nameLists[what]?.(session).catch(() => [])) ?? [];
  return names.filter((name) => /^[A-Za-z0-9_./@:+-]+$/.test(name) && !name.startsWith('-'));
}
