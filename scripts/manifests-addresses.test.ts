import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { files } from './manifests.ts';

test('what pods listen on is there in clusters of either kind of address', () => {
  const text = readFileSync(files.manifests, 'utf8');
  expect(text.match(/--(?:health|listen)=\S+/g)).toEqual([
    '--health=127.0.0.1:7879',
    '--health=:8081',
    '--listen=:8443',
  ]);
});
