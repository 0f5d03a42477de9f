import { expect, test } from 'vitest';
import { createHandleIndex, hashOf } from './handle-index.ts';

test('the handle index finds each of many added and not removed handles', () => {
  const keys = Array.from({ length: 5000 }, (_, i) => Buffer.from(`key ${i * 7}`));
  const index = createHandleIndex(
    (key, value) => (keys[value - 1] as Buffer).equals(key),
    (value) => hashOf(keys[value - 1] as Buffer),
  );
  for (const [i, key] of keys.entries()) index.add(hashOf(key), i + 1);
  for (let i = 0; i < keys.length; i += 2) index.remove(hashOf(keys[i] as Buffer), i + 1);
  for (let round = 0; round < 20; round++) {
    for (let i = 0; i < keys.length; i += 2) index.add(hashOf(keys[i] as Buffer), i + 1);
    for (let i = 0; i < keys.length; i += 2) index.remove(hashOf(keys[i] as Buffer), i + 1);
  }
  expect(index.size).toBe(2500);
  for (const [i, key] of keys.entries()) expect(index.find(key, hashOf(key))).toBe(i % 2 === 0 ? undefined : i + 1);
});
