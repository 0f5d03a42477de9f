import { clusterOptionNames } from './cluster-program.ts';
import type { StowageCommand } from './command.ts';
import { childrenOf, commandTree } from './command-tree.ts';
import { exitCodes } from './exit-codes.ts';
import { createProgram } from './program.ts';
import type { MakeAction } from './session.ts';

const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ');

function rows(head: readonly [string, string], pairs: readonly (readonly [string, string])[]): string[] {
  if (pairs.length === 0) return [];
  return [
    `| ${head[0]} | ${head[1]} |`,
    '| --- | --- |',
    ...pairs.map(([a, b]) => `| \`${cell(a)}\` | ${cell(b)} |`),
    '',
  ];
}

function section(path: readonly string[], command: StowageCommand, program = 'stowage'): string[] {
  const name = [program, ...path].join(' ');
  const aliases = command.aliases();
  const args = command.registeredArguments.map(
    (argument) =>
      [
        argument.required
          ? `<${argument.name()}${argument.variadic ? '...' : ''}>`
          : `[${argument.name()}${argument.variadic ? '...' : ''}]`,
        argument.description + (argument.argChoices === undefined ? '' : ` (${argument.argChoices.join(', ')})`),
      ] as const,
  );
  const options = command.options.map(
    (option) =>
      [
        option.flags,
        option.description +
          (option.argChoices === undefined ? '' : ` (${option.argChoices.join(', ')})`) +
          (option.mandatory ? ' (required)' : ''),
      ] as const,
  );
  return [
    `${'#'.repeat(Math.min(path.length + 1, 4))} ${name}`,
    '',
    ...command.description().split('\n'),
    '',
    ...(childrenOf(command).length > 0 ? [] : ['```', `${name} ${command.usage()}`, '```', '']),
    ...(aliases.length === 0
      ? []
      : [
          `Also: ${aliases.map((alias) => `\`${['stowage', ...path.slice(0, -1), alias].join(' ')}\``).join(', ')}`,
          '',
        ]),
    ...rows(['Argument', 'Meaning'], args),
    ...rows(['Option', 'Meaning'], options),
    ...(command.examples.length === 0
      ? []
      : ['```sh', ...command.examples.flatMap(({ line, what }) => [`# ${what}`, line]), '```', '']),
  ];
}

const ignoreAction: MakeAction = () => async () => undefined;
const referenceServices = { version: '', program: 'stowage' };

/** Only the differences from `stowage`. */
function kubectlSection(): string[] {
  const services = { version: '', program: 'kubectl stowage', cluster: () => Promise.reject(new Error('nowhere')) };
  const program = createProgram(services, ignoreAction);
  const own = program.options.filter(({ long }) =>
    (clusterOptionNames as readonly (string | undefined)[]).includes(long),
  );
  const hostCommands = new Set(
    commandTree(createProgram(referenceServices, ignoreAction)).map(({ path }) => path.join(' ')),
  );
  const clusterCommands = commandTree(program).filter(({ path }) => !hostCommands.has(path.join(' ')));
  const names = commandTree(program)
    .filter(({ path, command }) => path.length > 0 && childrenOf(command).length === 0)
    .map(({ path }) => `\`${path.join(' ')}\``);
  return [
    '## kubectl stowage',
    '',
    'The command line for Stowage in a Kubernetes cluster: `bin/kubectl-stowage` on the PATH makes it a plugin of kubectl.',
    'It connects through the API server of the kubeconfig, and requests a short-lived service account token each time.',
    'Instead of `--socket`, `--url` and `--token-file` it has these options:',
    '',
    ...rows(
      ['Option', 'Meaning'],
      own.map(({ flags, description }) => [flags, description] as const),
    ),
    `It has the commands ${names.join(', ')}. Commands that only make sense on a host fail, and the error names the alternative in a cluster.`,
    '',
    ...clusterCommands
      .flatMap(({ path, command }) => section(path, command, 'kubectl stowage'))
      .map(program.rewriteProgramName),
  ];
}

/** Every command with its arguments, options and examples, as one page of Markdown. */
export function cliReference(): string {
  const program = createProgram(referenceServices, ignoreAction);
  const [root, ...commands] = commandTree(program);
  return [
    '# The command line',
    '',
    'Generated from the program; `--help` prints the same text for each command. The global options of `stowage` may stand',
    'before or after any command.',
    '',
    ...(root === undefined ? [] : section([], root.command).slice(2)),
    ...commands.flatMap(({ path, command }) => section(path, command)),
    ...kubectlSection(),
    '## Exit status',
    '',
    '| Status | Meaning | Error codes |',
    '| --- | --- | --- |',
    ...exitCodes().map(
      ({ exit, codes, meaning }) => `| ${exit} | ${cell(meaning)} | ${codes.map((code) => `\`${code}\``).join(', ')} |`,
    ),
    '',
  ].join('\n');
}
