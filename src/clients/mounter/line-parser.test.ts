import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createLineParser } from './line-parser.ts';

const parseAll = (text: string): readonly string[] => {
  const lines = text.split('\n');
  return (text.endsWith('\n') || text === '' ? lines.slice(0, -1) : lines).filter((line) => line !== 'none');
};

describe('a parser for a table that is read repeatedly', () => {
  test('returns what a full parse would, whatever was added, removed or changed', () => {
    const line = fc.constantFrom('a', 'b', 'ab', 'ba', 'none', 'ä', '');
    const table = fc.record({ lines: fc.array(line, { maxLength: 6 }), isWhole: fc.boolean() });
    fc.assert(
      fc.property(fc.array(table, { maxLength: 8 }), (tables) => {
        const read = createLineParser((text) => (text === 'none' ? undefined : text));
        for (const { lines, isWhole } of tables) {
          const text = `${lines.join('\n')}${isWhole && lines.length > 0 ? '\n' : ''}`;
          expect(read(Buffer.from(text))).toEqual(parseAll(text));
        }
      }),
      { numRuns: 2_000 },
    );
  });

  test('parses only the changed part', () => {
    const parsedLines: string[] = [];
    const read = createLineParser((line) => {
      parsedLines.push(line);
      return { line };
    });
    const lines = Array.from({ length: 50 }, (_, i) => `line ${i}`);
    const readLines = (currentLines: readonly string[]) => read(Buffer.from(`${currentLines.join('\n')}\n`));
    const first = readLines(lines);
    expect(parsedLines.splice(0)).toEqual(lines);
    const longerTable = readLines([...lines, 'new']);
    expect(parsedLines.splice(0)).toEqual(['new']);
    expect(longerTable[7]).toBe(first[7]);
    expect(readLines([...lines, 'new'])).toBe(longerTable);
    const shorterTable = readLines([...lines.slice(0, 20), ...lines.slice(21), 'new']);
    expect(parsedLines.splice(0)).toEqual([]);
    expect([shorterTable.length, shorterTable[20], shorterTable.at(-1)]).toEqual([50, first[21], longerTable.at(-1)]);
    readLines([...lines.slice(0, 20), 'other', ...lines.slice(21), 'new']);
    expect(parsedLines).toEqual(['other']);
  });

  test("does not depend on the caller's buffer", () => {
    const buffer = Buffer.from('one\ntwo\n');
    const read = createLineParser((line) => line);
    expect(read(buffer)).toEqual(['one', 'two']);
    buffer.write('six\n');
    expect(read(buffer)).toEqual(['six', 'two']);
  });
});
