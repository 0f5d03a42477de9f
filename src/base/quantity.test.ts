import { expect, test } from 'vitest';
import { bytesOf, quantityOf } from './quantity.ts';

test.each<[string, bigint | undefined]>([
  ['0', 0n],
  ['1', 1n],
  ['+5', 5n],
  ['1Ki', 1024n],
  ['10Gi', 10n << 30n],
  ['1.5Gi', 3n << 29n],
  ['1Ei', 1n << 60n],
  ['500M', 500_000_000n],
  ['2k', 2000n],
  ['1E', 10n ** 18n],
  ['1e9', 10n ** 9n],
  ['1.5E3', 1500n],
  ['12e-1', 2n],
  ['100m', 1n],
  ['1500m', 2n],
  ['.5Ki', 512n],
  ['5.', 5n],
  ['', undefined],
  ['.', undefined],
  ['-1', undefined],
  ['1K', undefined],
  ['1GiB', undefined],
  ['1 Gi', undefined],
  ['Gi', undefined],
])('%s is parsed as %s bytes', (text, bytes) => {
  expect(bytesOf(text)).toBe(bytes);
});

test.each<[bigint, string]>([
  [0n, '0'],
  [1n, '1'],
  [1023n, '1023'],
  [1024n, '1Ki'],
  [1n << 30n, '1Gi'],
  [3n << 29n, '1536Mi'],
  [(1n << 30n) + 1n, '1073741825'],
  [1n << 70n, '1024Ei'],
])('%s bytes are formatted as %s', (bytes, text) => {
  expect(quantityOf(bytes)).toBe(text);
  expect(bytesOf(text)).toBe(bytes);
});
