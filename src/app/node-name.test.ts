import { hostname } from 'node:os';
import { expect, test } from 'vitest';
import { nodeNameFrom } from './node-name.ts';

test('the name is the configured one, otherwise the host name', () => {
  expect(nodeNameFrom(undefined)).toBe(hostname());
  expect(nodeNameFrom('worker-1.example.org')).toBe('worker-1.example.org');
  expect(nodeNameFrom('a'.repeat(253))).toHaveLength(253);
});

// The third is what Kubernetes leaves of an undefined variable.
test.each(['', '-a', '$(NODE_NAME)', 'a b', 'a/b', 'a.', 'a'.repeat(254)])('refuses %o as a name', (told) => {
  expect(() => nodeNameFrom(told)).toThrow(expect.objectContaining({ code: 'invalid', reason: 'node-name-invalid' }));
});
