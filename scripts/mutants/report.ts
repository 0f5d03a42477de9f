import type { Verdict } from './judge.ts';
import type { Mutant } from './mutant.ts';

export interface Judged {
  readonly mutant: Mutant;
  readonly verdict: Verdict;
}

/** Longer texts are cut in the report. `--json` writes them in full. */
const maxTextLength = 60;

function short(text: string): string {
  const line = text.replaceAll(/\s+/g, ' ');
  return line.length > maxTextLength ? `${line.slice(0, maxTextLength - 1)}…` : line;
}

/** `src/core/names.ts:12  a === b → a !== b` */
function changeLine({ file, line, original, replacement }: Mutant): string {
  const to = replacement === '' || replacement === ';' ? 'nothing' : short(replacement);
  return `${file}:${line}  ${short(original)} → ${to}`;
}

export function verdictLine({ mutant, verdict }: Judged): string {
  const seconds = `${verdict.seconds.toFixed(1).padStart(6)} s`;
  return `${verdict.status.padEnd(8)} ${seconds}  ${changeLine(mutant)}  (${reasonOf(verdict)})`;
}

function reasonOf({ status, by, passed, related }: Verdict): string {
  switch (status) {
    case 'killed':
    case 'timeout':
      return `by ${by}`;
    case 'survived':
      return related === 0 ? 'no test' : `${passed} of ${related} related test files passed`;
    case 'unjudged':
      return `none of ${related} related test files passes without a mutant`;
    case 'gone':
      return 'its lines are no longer there';
    default:
      return status satisfies never;
  }
}

const isKilled = ({ verdict: { status } }: Judged): boolean => status === 'killed' || status === 'timeout';
const hasSurvived = ({ verdict: { status } }: Judged): boolean => status === 'survived';

/** The survivors, a table by top folder of src/, the problems, and the totals on the last line. */
export function reportLines(judged: readonly Judged[], unreliable: ReadonlyMap<string, string>): readonly string[] {
  const survivors = judged.filter(hasSurvived).map(({ mutant }) => `  ${changeLine(mutant)}`);
  const left = judged.flatMap(({ mutant, verdict }) =>
    verdict.left.map((line) => `  ${mutant.file}:${mutant.line}: ${line}`),
  );
  return [
    ...section('Survived:', survivors),
    ...section('Left behind while a mutant was there, and removed:', left),
    ...section(
      'Did not pass without a mutant either, so not counted:',
      [...unreliable].toSorted().map(([file, why]) => `  ${file}: ${why}`),
    ),
    ...tableLines(judged),
    '',
    figures(judged),
  ];
}

const section = (title: string, lines: readonly string[]): readonly string[] =>
  lines.length === 0 ? [] : [title, ...lines, ''];

function tableLines(judged: readonly Judged[]): readonly string[] {
  const folders = Map.groupBy(judged, ({ mutant }) => mutant.file.split('/').slice(0, 2).join('/'));
  const rows = [...folders].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([folder, all]) => row(folder, all));
  return ['folder              mutants  killed  survived', ...rows];
}

const row = (folder: string, all: readonly Judged[]): string =>
  [
    folder.padEnd(18),
    ...[all.length, all.filter(isKilled).length, all.filter(hasSurvived).length].map((n, i) =>
      String(n).padStart([9, 8, 10][i] ?? 0),
    ),
  ].join('');

function figures(judged: readonly Judged[]): string {
  const parts = [`${judged.filter(isKilled).length} killed`, `${judged.filter(hasSurvived).length} survived`];
  for (const status of ['unjudged', 'gone'] as const) {
    const count = judged.filter(({ verdict }) => verdict.status === status).length;
    if (count > 0) parts.push(`${count} ${status}`);
  }
  return `${parts.join(', ')} of ${judged.length}`;
}
