import type { UnreachedJson } from '#front/rest/schemas.ts';
import type { Io } from './io.ts';
import { problemOf } from './problem.ts';
import { type Cell, fields, type Paint, painter, table } from './table.ts';
import { escapeControls, terminalJson } from './text.ts';

export interface OutputOptions {
  readonly json: boolean;
  readonly quiet: boolean;
  readonly color: boolean;
}

/** Results go to standard output, notes and errors to standard error. */
export interface Output extends OutputOptions {
  readonly paint: Paint;
  /** One line of the result. The caller must have escaped the text for a terminal. */
  line(text: string): void;
  table(headers: readonly string[], rows: readonly (readonly Cell[])[]): void;
  fields(pairs: readonly (readonly [string, Cell | readonly Cell[]])[]): void;
  value(value: unknown): void;
  /** One JSON object per line, for endless output. */
  event(value: unknown): void;
  /** What the command did, on standard output; nothing with --quiet or --json. */
  reportDone(text: string): void;
  /** A note on standard error; nothing with --quiet or --json. */
  note(text: string): void;
  /** Warns that the result is incomplete, also with --quiet and --json. */
  noteUnanswered(stores: readonly string[], consequence: string): void;
  /** The same for nodes of a cluster. */
  noteUnreached(nodes: readonly UnreachedJson[], consequence: string): void;
  warn(text: string): void;
  error(thrown: unknown): void;
}

/** https://no-color.org: any value but the empty one. */
export function wantsColor(io: Io, flag: boolean): boolean {
  return flag && io.isTTY && !io.env['NO_COLOR'] && io.env['TERM'] !== 'dumb';
}

export function createOutput(
  io: Io,
  options: OutputOptions,
  rewriteProgramName = (text: string): string => text,
): Output {
  const paint = painter(options.color);
  const line = (text: string): void => void io.stdout.write(`${text}\n`);
  const writeToStderr = (text: string): void => void io.stderr.write(`${text}\n`);
  return {
    ...options,
    paint,
    line,
    table: (headers, rows) => table(headers, rows, paint).forEach(line),
    fields: (pairs) => fields(pairs, paint).forEach(line),
    value: (value) => line(terminalJson(value, 2)),
    event: (value) => line(terminalJson(value)),
    reportDone: (text) => {
      if (!options.quiet && !options.json) line(escapeControls(text));
    },
    note: (text) => {
      if (!options.quiet && !options.json) writeToStderr(escapeControls(rewriteProgramName(text)));
    },
    noteUnanswered: (stores, consequence) =>
      stores.map(escapeControls).forEach((store) => {
        writeToStderr(`note: store ${store} is unavailable; ${consequence} (see: stowage store show ${store})`);
      }),
    noteUnreached: (nodes, consequence) =>
      nodes.forEach(({ node, message }) => {
        writeToStderr(`note: cannot reach node ${escapeControls(node)}; ${consequence}: ${escapeControls(message)}`);
      }),
    warn: (text) => writeToStderr(`${paint('warn', 'warning:')} ${escapeControls(rewriteProgramName(text))}`),
    error: (thrown) => {
      const problem = problemOf(thrown);
      if (options.json) return writeToStderr(terminalJson(problem));
      writeToStderr(`${paint('bad', 'error:')} ${escapeControls(problem.detail)}`);
      if (problem.action !== '')
        writeToStderr(`${paint('strong', 'action:')} ${escapeControls(rewriteProgramName(problem.action))}`);
    },
  };
}
