import type { Verb } from './command.ts';
import { exitCodes } from './exit-codes.ts';
import { createProgram } from './program.ts';
import { childrenOf, walk } from './tree.ts';

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

function section(path: readonly string[], command: Verb): string[] {
  const name = ['stowage', ...path].join(' ');
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

/** Every command with its arguments, options and examples, as one page of Markdown. */
export function cliReference(): string {
  const program = createProgram({ version: '', program: 'stowage' }, () => async () => undefined);
  const [root, ...commands] = walk(program);
  return [
    '# The command line',
    '',
    'Made from the program itself; every command shows the same with `--help`. The options of `stowage` itself may stand',
    'before or after any command.',
    '',
    ...(root === undefined ? [] : section([], root.command).slice(2)),
    ...commands.flatMap(({ path, command }) => section(path, command)),
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
