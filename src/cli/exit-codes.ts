import { errorCodes } from '#core/error-codes.ts';

export interface ExitCode {
  readonly exit: number;
  readonly codes: readonly string[];
  readonly meaning: string;
}

/** Generated from the table of error codes, so that the help is always right. */
export function exitCodes(): ExitCode[] {
  const byExit = Map.groupBy(Object.entries(errorCodes), ([, { exit }]) => exit);
  const failures = [...byExit].map(([exit, entries]) => ({
    exit,
    codes: entries.map(([code]) => code),
    meaning: entries.map(([, { title }]) => title).join('; ') + (extra[exit] ?? ''),
  }));
  return [{ exit: 0, codes: [], meaning: 'Done' }, ...failures].sort((a, b) => a.exit - b.exit);
}

const extra: Readonly<Record<number, string>> = {
  1: '; or doctor or store check found something wrong',
  2: '; or the command line was not understood',
};

/** For the program's help; `stowage help exit-codes` adds the error codes. */
export const exitCodeLines = (): string[] => [
  'Exit status:',
  ...exitCodes().map(({ exit, meaning }) => `  ${String(exit).padStart(3)}  ${meaning}`),
];

export function exitCodeTopic(): string[] {
  const wide = Math.max(...exitCodes().map(({ codes }) => codes.join(', ').length));
  return [
    'Exit status, the codes of errors it stands for (as --json prints them), and what they mean:',
    ...exitCodes().map(
      ({ exit, codes, meaning }) => `  ${String(exit).padStart(3)}  ${codes.join(', ').padEnd(wide)}  ${meaning}`,
    ),
    '',
    'When a command is about several volumes, the first failure counts.',
  ];
}
