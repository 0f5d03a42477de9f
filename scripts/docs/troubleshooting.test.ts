import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { errorCodes } from '#core/errors.ts';

test('every code has an entry in the page for clusters', async () => {
  const page = join(import.meta.dirname, '..', '..', 'docs', 'kubernetes-troubleshooting.md');
  const text = await readFile(page, 'utf8');
  const described = Array.from(text.matchAll(/^\| `([a-z-]+)` \| [A-Za-z]+ \| .{40}/gm), ([, code]) => code);
  expect(described.toSorted()).toEqual(Object.keys(errorCodes).toSorted());
});
