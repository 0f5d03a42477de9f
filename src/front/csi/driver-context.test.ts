import { expect, test } from 'vitest';
import type { Core } from '#core/core.ts';
import { topologyOf } from './driver-context.ts';

const valueFor = (node: string): string | undefined => topologyOf({ core: { node } as Core })['local.stowage.dev/node'];

test('the topology of a node is its name', () => {
  for (const name of ['node-1', 'ip-10-0-0-1.eu-west-1.compute.internal', 'a'.repeat(63)])
    expect(valueFor(name)).toBe(name);
});

test('nodes whose names are invalid as labels get different topology values', () => {
  const names = ['one', 'other'].map((last) => `${'a'.repeat(70)}.${last}`);
  const values = [...names, 'a b', 'a/b', '-a b-'].map(valueFor);
  expect(new Set(values).size).toBe(values.length);
  for (const value of values) expect(value).toMatch(/^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$/);
});
