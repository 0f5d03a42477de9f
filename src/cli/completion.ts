import { Argument } from 'commander';
import type {
  MountJson,
  OperationJson,
  StoreJson,
  TokenJson,
  TrashEntryJson,
  VolumeJson,
} from '#front/rest/schemas.ts';
import type { Verb } from './command.ts';
import { bashScript } from './completion-bash.ts';
import { fishScript } from './completion-fish.ts';
import { zshScript } from './completion-zsh.ts';
import type { Act, Session } from './session.ts';
import { type CommandNode, commandNodes } from './tree.ts';

const shells: Readonly<Record<string, (nodes: readonly CommandNode[]) => string>> = {
  bash: bashScript,
  zsh: zshScript,
  fish: fishScript,
};

export function addCompletionCommands(program: Verb, act: Act): void {
  program
    .command('completion')
    .description('Print a completion script for a shell; it completes the names of stores and volumes too.')
    .addArgument(new Argument('<shell>', 'which shell').choices(Object.keys(shells)))
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

const latest = async ({ client }: Session): Promise<OperationJson[]> =>
  (await client.get<{ items: OperationJson[] }>('/v1/operations', { limit: '50' })).items;

const known: Readonly<Record<string, (session: Session) => Promise<string[]>>> = {
  stores: async ({ client }) => (await client.all<StoreJson>('/v1/stores')).map((store) => store.name),
  volumes: async ({ client }) =>
    // A page is enough to choose from.
    (await client.get<{ items: VolumeJson[] }>('/v1/volumes')).items.map((volume) => `${volume.store}/${volume.name}`),
  trash: async ({ client }) =>
    (await client.all<TrashEntryJson>('/v1/trash')).map((entry) => `${entry.store}/${entry.name}`),
  operations: async (session) => (await latest(session)).map((operation) => operation.id),
  running: async (session) =>
    (await latest(session)).filter(({ state }) => state === 'running').map((operation) => operation.id),
  tokens: async ({ client }) => (await client.all<TokenJson>('/v1/tokens')).map((token) => token.id),
  mounts: async ({ client }) => (await client.all<MountJson>('/v1/mounts')).map((mount) => mount.target),
};

/** Runs while somebody types: silent, whatever happens, and only names that mean nothing to a shell. */
async function complete(session: Session, what: string): Promise<void> {
  const names = await known[what]?.(session).catch(() => []);
  for (const name of names ?? [])
    if (/^[A-Za-z0-9_./@:+-]+$/.test(name) && !name.startsWith('-')) session.out.line(name);
}
