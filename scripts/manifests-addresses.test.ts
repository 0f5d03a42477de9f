import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { files } from './manifests.ts';

test('pods listen on addresses that exist in IPv4 and IPv6 clusters', () => {
  const text = readFileSync(files.manifests, 'utf8');
  expect(text.match(/--(?:health|listen)=\S+/g)).toEqual([
    '--health=127.0.0.1:7879',
    '--health=:8081',
    '--listen=:8443',
  ]);
});
