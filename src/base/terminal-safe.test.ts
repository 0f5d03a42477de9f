import { expect, test } from 'vitest';
import { terminalSafe } from './terminal-safe.ts';

test.each([
  ['plain, ä and 💾', 'plain, ä and 💾'],
  ['two\nlines\tand \x1b[31mred', 'two\\u{a}lines\\u{9}and \\u{1b}[31mred'],
  ['\x7f\x9b', '\\u{7f}\\u{9b}'],
  ['a\u202eb\u2066c\u200ed\u2028', 'a\\u{202e}b\\u{2066}c\\u{200e}d\\u{2028}'],
])('%j is escaped as %j', (text, shown) => expect(terminalSafe(text)).toBe(shown));
