import { escapeControls } from './text.ts';

export type Tone = 'plain' | 'good' | 'warn' | 'bad' | 'faint' | 'strong';
export type Paint = (tone: Tone, text: string) => string;
/** A cell is text, or text with a tone. Colours are added after alignment, since they have no width. */
export type Cell = string | { readonly text: string; readonly tone: Tone };

const codes: Readonly<Record<Tone, string>> = { plain: '', good: '32', warn: '33', bad: '31', faint: '2', strong: '1' };

export const painter = (color: boolean): Paint =>
  color
    ? (tone, text) => (tone === 'plain' || text === '' ? text : `\x1b[${codes[tone]}m${text}\x1b[0m`)
    : (_, text) => text;

const textOf = (cell: Cell): string => escapeControls(typeof cell === 'string' ? cell : cell.text) || '-';
const width = (text: string): number => [...text].length;

/** Columns two spaces apart, without borders. */
export function table(headers: readonly string[], rows: readonly (readonly Cell[])[], paint: Paint): string[] {
  const widths = headers.map((header, i) => Math.max(width(header), ...rows.map((row) => width(textOf(row[i] ?? '')))));
  const line = (cells: readonly Cell[], tone: Tone): string =>
    headers
      .map((_, i) => {
        const cell = cells[i] ?? '';
        const text = textOf(cell);
        const padding = i === headers.length - 1 ? '' : ' '.repeat((widths[i] ?? 0) - width(text) + 2);
        return paint(typeof cell === 'string' ? tone : cell.tone, text) + padding;
      })
      .join('');
  return [line(headers, 'faint'), ...rows.map((row) => line(row, 'plain'))];
}

/** `name   value` lines; a value of several lines is indented under the first. */
export function fields(pairs: readonly (readonly [string, Cell | readonly Cell[]])[], paint: Paint): string[] {
  const wide = Math.max(...pairs.map(([name]) => width(name))) + 2;
  return pairs.flatMap(([name, value]) => {
    const cells = (typeof value === 'object' && 'map' in value ? value : [value]) as readonly Cell[];
    return (cells.length === 0 ? ['-'] : cells).map((cell, i) => {
      const label = i === 0 ? paint('faint', name) + ' '.repeat(wide - width(name)) : ' '.repeat(wide);
      return label + paint(typeof cell === 'string' ? 'plain' : cell.tone, textOf(cell));
    });
  });
}
