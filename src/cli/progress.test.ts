import { expect, test } from 'vitest';
import type { OperationJson } from '#front/rest/schemas.ts';
import { barLine } from './progress.ts';
import { operation } from './scripted-server.ts';

const at = (progress: OperationJson['progress'], ms = 3000): string =>
  barLine(operation('running', { progress }) as OperationJson, ms);

test('a known total gives a part, never more than all', () => {
  expect(at({ done: 512 << 20, total: 1 << 30, unit: 'bytes' })).toBe(
    'volume.delete local/demo  [############------------]   50%  512MiB/1GiB  3s',
  );
  expect(at({ done: 12, total: 10, unit: 'files' })).toBe(
    'volume.delete local/demo  [########################]  100%  12/10 files  3s',
  );
});

test('an unknown total gives a mark that moves to and fro', () => {
  const spots = [0, 200, 4600, 4800, 9000].map(
    (ms) => at({ done: 5, total: null, unit: 'files' }, ms).indexOf('#') - 27,
  );
  expect(spots).toEqual([0, 1, 23, 22, 1]);
  expect(at(null)).toMatch(/^volume\.delete local\/demo {2}\[-+#-+\] {2}3s$/);
});
