import { readFileSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { expect } from 'vitest';
import { isErrno } from '#base/errno.ts';

const repository = join(import.meta.dirname, '..', '..', '..');
const head = '# Names that users rely on. See "Golden files" in CONTRIBUTING.md.';

/** `STOWAGE_GOLDEN=add` records new names in the files. Names are only ever removed by hand. */
const addsNames = process.env['STOWAGE_GOLDEN'] === 'add';

const explanation =
  'Users, their programs and older versions rely on these names. Removing or renaming one is a breaking change: keep it, or support the ' +
  'old name beside the new one. If it has to go, the project must decide that: delete its lines from the file by hand and record it in ' +
  'CHANGELOG.md.';

/** Fails unless the names are the lines of the committed file `<name>.txt` in this folder. The order doesn't matter. */
export function expectGolden(name: string, found: Iterable<string>): void {
  compareGolden(join(import.meta.dirname, `${name}.txt`), found, addsNames);
}

export function compareGolden(file: string, found: Iterable<string>, add: boolean): void {
  const known = new Set(read(file).filter((line) => line !== '' && !line.startsWith('#')));
  const now = new Set(found);
  const gone = [...known].filter((line) => !now.has(line));
  const fresh = [...now].filter((line) => !known.has(line));
  if (add && fresh.length > 0) writeFileSync(file, text([...known, ...fresh]));
  const shown = relative(repository, file);
  const listed = (lines: readonly string[]): string => lines.map((line) => `\n  ${line}`).join('');
  if (gone.length > 0) {
    const also = fresh.length === 0 ? '' : `\n\nNew names, perhaps replacements:${listed(fresh)}`;
    expect.fail(`${shown} has names that are gone:${listed(gone)}${also}\n\n${explanation}`);
  }
  if (fresh.length > 0 && !add) {
    const how = `Adding names is fine. Record them with: STOWAGE_GOLDEN=add npm test -- src/testing/golden`;
    expect.fail(`${shown} lacks new names:${listed(fresh)}\n\n${how}`);
  }
}

function read(file: string): readonly string[] {
  try {
    return readFileSync(file, 'utf8').split('\n');
  } catch (thrown) {
    if (isErrno(thrown, 'ENOENT')) return [];
    throw thrown;
  }
}

/** Sorts by code units, so the order is the same on every machine. */
const text = (lines: readonly string[]): string => [head, ...lines.toSorted(), ''].join('\n');
