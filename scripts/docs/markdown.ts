/** Inline code in Markdown, for any text. */
export function code(text: string): string {
  const fence = text.includes('`') ? '``' : '`';
  const pad = text.startsWith('`') || text.endsWith('`') ? ' ' : '';
  return `${fence}${pad}${text.replaceAll('\n', ' ')}${pad}${fence}`;
}

const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ');
const row = (cells: readonly string[]): string => `| ${cells.map(cell).join(' | ')} |`;

export function table(head: readonly string[], rows: readonly (readonly string[])[]): readonly string[] {
  return [row(head), row(head.map(() => '---')), ...rows.map(row)];
}

/** The anchor that GitHub generates for a heading. */
export const anchor = (heading: string): string =>
  heading
    .toLowerCase()
    .replaceAll(/[^a-z0-9 _-]/g, '')
    .replaceAll(' ', '-');
