import type { Argument, Option } from 'commander';
import type { StowageCommand } from './command.ts';

/** How to complete a word: from a list, from names that the server knows (`ask`), as a file, or not at all. */
export type CompletionKind =
  | { readonly kind: 'words'; readonly words: readonly string[] }
  | { readonly kind: 'ask'; readonly what: string }
  | { readonly kind: 'files' }
  | { readonly kind: 'anything' };

export interface OptionNode {
  readonly long: string;
  readonly short: string | undefined;
  readonly about: string;
  /** Undefined: the option takes no value. */
  readonly takes: CompletionKind | undefined;
}

export interface CommandNode {
  /** `volume/create`; empty for the program itself. */
  readonly path: string;
  readonly aliases: readonly string[];
  readonly about: string;
  readonly children: readonly { readonly name: string; readonly about: string }[];
  /** The command's own options; the program's options may stand everywhere. */
  readonly options: readonly OptionNode[];
  readonly arguments: readonly CompletionKind[];
  /** The last argument can be repeated. */
  readonly repeats: boolean;
}

/** Which names the server must list, by the name of an argument or option value; `COMMAND NAME` is for one command only. */
const serverLists: Readonly<Record<string, string>> = {
  store: 'stores',
  volume: 'volumes',
  volumes: 'volumes',
  trashed: 'trash',
  operation: 'operations',
  token: 'tokens',
  'path-or-volume': 'mounts',
  'unmount path': 'mounts',
  'operations/cancel operation': 'running',
};
const files = new Set(['path', 'file', 'dir']);

function kindOf(name: string, choices: readonly string[] | undefined, command = ''): CompletionKind {
  if (choices !== undefined) return { kind: 'words', words: choices };
  const what = serverLists[`${command} ${name}`] ?? serverLists[name];
  if (what !== undefined) return { kind: 'ask', what };
  return files.has(name) ? { kind: 'files' } : { kind: 'anything' };
}

/** `--store <store>` → `store` */
const valueName = (option: Option): string | undefined => /[<[]([^\]>.]+)/.exec(option.flags)?.[1];

function optionNode(option: Option): OptionNode {
  // After an option with an optional value, the next word is more likely another option.
  const name = option.optional ? undefined : valueName(option);
  return {
    long: option.long ?? option.flags,
    short: option.short,
    about: option.description,
    takes: name === undefined ? undefined : kindOf(name, option.argChoices),
  };
}

/** For lists of commands. */
export const firstSentence = (text: string): string => /^.*?(?=\.(?:\s|$))/s.exec(text)?.[0] ?? text;

const isHidden = (command: StowageCommand): boolean => command.name().startsWith('__') || command.isUnsupported;
export const childrenOf = (command: StowageCommand): StowageCommand[] =>
  (command.commands as StowageCommand[]).filter((child) => !isHidden(child));

/** The program and every command below it, parents first. */
export function commandTree(
  command: StowageCommand,
  path: readonly string[] = [],
): { readonly path: readonly string[]; readonly command: StowageCommand }[] {
  return [{ path, command }, ...childrenOf(command).flatMap((child) => commandTree(child, [...path, child.name()]))];
}

export function commandNodes(program: StowageCommand): CommandNode[] {
  const nodes = commandTree(program).map(({ path, command }): CommandNode => {
    const args = command.registeredArguments as readonly Argument[];
    const own = [...command.options, ...(defaultChild(command)?.options ?? [])].map(optionNode);
    return {
      path: path.join('/'),
      aliases: command.aliases().map((alias) => [...path.slice(0, -1), alias].join('/')),
      about: firstSentence(command.description()),
      children: childrenOf(command).map((child) => ({ name: child.name(), about: firstSentence(child.description()) })),
      options: path.length > 0 ? own : [...own, { long: '--help', short: '-h', about: 'show help', takes: undefined }],
      arguments: args.map((argument) => kindOf(argument.name(), argument.argChoices, path.join('/'))),
      repeats: args.at(-1)?.variadic ?? false,
    };
  });
  return nodes.flatMap((node) => (node.path === 'help' ? helpNodes(nodes) : [node]));
}

/** `help` takes the same words as the program itself, except arguments and options. */
function helpNodes(nodes: readonly CommandNode[]): CommandNode[] {
  const topic = { name: 'exit-codes', about: 'what each exit status means' };
  return nodes
    .filter(({ children }) => children.length > 0)
    .map((node) => ({
      ...node,
      path: node.path === '' ? 'help' : `help/${node.path}`,
      aliases: node.aliases.map((alias) => `help/${alias}`),
      children: node.path === '' ? [...node.children, topic] : node.children,
      options: [],
    }));
}

/** The default subcommand, whose options may be given without its name: `stowage operations --watch`. */
function defaultChild(command: StowageCommand): StowageCommand | undefined {
  const { _defaultCommandName: name } = command as unknown as { readonly _defaultCommandName?: string | null };
  return childrenOf(command).find((child) => child.name() === name);
}
