import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { flat } from './flatten-schema.ts';
import { compareGolden } from './golden.ts';

let folder: string;
let file: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-golden-'));
  file = join(folder, 'names.txt');
  writeFileSync(file, '# What it is.\na\nb\n');
});
afterEach(() => rmSync(folder, { recursive: true }));

describe('a golden file', () => {
  test('accepts the same names in any order', () => {
    compareGolden(file, ['b', 'a', 'b'], false);
  });

  test('fails when a name is gone, and shows new names that may replace it', () => {
    const compare = (): void => compareGolden(file, ['a', 'c'], false);
    expect(compare).toThrow(/names that are gone:\n {2}b\n\nNew names, perhaps replacements:\n {2}c/);
    expect(compare).toThrow('CHANGELOG.md');
  });

  test('fails when a name is new, and shows how to record it', () => {
    expect(() => compareGolden(file, ['a', 'b', 'c'], false)).toThrow(
      'lacks new names:\n  c\n\nAdding names is fine. Record them with: STOWAGE_GOLDEN=add npm test -- src/testing/golden',
    );
  });

  test('adds new names in sorted order, but never removes one', () => {
    compareGolden(file, ['a', 'aa', 'b'], true);
    expect(readFileSync(file, 'utf8').split('\n').slice(1)).toEqual(['a', 'aa', 'b', '']);
    expect(() => compareGolden(file, ['a', 'c'], true)).toThrow('names that are gone');
    expect(readFileSync(file, 'utf8').split('\n').slice(1)).toEqual(['a', 'aa', 'b', 'c', '']);
  });

  test('is created if it does not exist', () => {
    rmSync(file);
    expect(() => compareGolden(file, ['a'], false)).toThrow('lacks new names');
    compareGolden(file, ['a'], true);
    compareGolden(file, ['a'], false);
  });
});

test('flattens a schema without prose, but keeps fields with names such as title', () => {
  const schema = {
    description: 'prose',
    required: ['title', 'size'],
    properties: { title: { type: 'string', description: 'prose' }, size: { anyOf: [{ type: 'null' }] } },
    parameters: [{ name: 'limit', schema: {} }],
  };
  expect(flat(schema)).toEqual([
    'required: title',
    'required: size',
    'properties.title.type: string',
    'properties.size.anyOf.0.type: null',
    'parameters.limit.name: limit',
    'parameters.limit.schema: {}',
  ]);
});
