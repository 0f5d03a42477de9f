import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { storesFile, storesYaml } from './crds.ts';

test('the definition of stores is what the sources say: node scripts/crds.ts', () => {
  expect(readFileSync(storesFile, 'utf8')).toBe(storesYaml());
});
