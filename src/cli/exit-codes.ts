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
    meaning: entries.map(([, { title }]) => title).join('; ') + (addedMeanings[exit] ?? ''),
  }));
  return [{ exit: 0, codes: [], meaning: 'Success' }, ...failures].sort((a, b) => a.exit - b.exit);
}

const addedMeanings: Readonly<Record<number, string>> = {
  1: '; or doctor or store check found a problem',
  2: '; or invalid command line',
};

/** For the program's help; `stowage help exit-codes` adds the error codes. */
export const exitCodeLines = (): string[] => [
  'Exit status:',
  ...exitCodes().map(({ exit, meaning }) => `  ${String(exit).padStart(3)}  ${meaning}`),
];

export function exitCodeTopic(): string[] {
  const wide = Math.max(...exitCodes().map(({ codes }) => codes.join(', ').length));
  return [
    'Exit statuses, their error codes (as printed with --json) and meanings:',
    ...exitCodes().map(
      ({ exit, codes, meaning }) => `  ${String(exit).padStart(3)}  ${codes.join(', ').padEnd(wide)}  ${meaning}`,
    ),
    '',
    'If a command fails for several volumes, it exits with the status of the first failure.',
  ];
}
