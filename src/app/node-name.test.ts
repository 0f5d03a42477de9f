import { hostname } from 'node:os';
import { expect, test } from 'vitest';
import { nodeNameFrom } from './node-name.ts';

test('a machine is called as it is told, else as it calls itself', () => {
  expect(nodeNameFrom(undefined)).toBe(hostname());
  expect(nodeNameFrom('worker-1.example.org')).toBe('worker-1.example.org');
  expect(nodeNameFrom('a'.repeat(253))).toHaveLength(253);
});

// The third is what Kubernetes leaves of a variable that is not there.
test.each(['', '-a', '$(NODE_NAME)', 'a b', 'a/b', 'a.', 'a'.repeat(254)])('%o is not taken for its name', (told) => {
  expect(() => nodeNameFrom(told)).toThrow(expect.objectContaining({ code: 'invalid', reason: 'node-name-invalid' }));
});
