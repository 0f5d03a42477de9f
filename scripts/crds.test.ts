import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { storesFiles, storesYaml } from './crds.ts';

test('the Store CRD agrees with the sources; if not: node scripts/crds.ts', () => {
  for (const file of storesFiles) expect(readFileSync(file, 'utf8')).toBe(storesYaml());
});
