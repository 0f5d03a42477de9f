import { expect, test } from 'vitest';
import { createReadMemory } from './read-memory.ts';

const mib = 1024 * 1024;

test('reuses memory, and frees it when no read has needed it for a while', () => {
  const memory = createReadMemory();
  const [one, two] = [memory.take(mib), memory.take(mib)];
  memory.release(one);
  memory.release(two);
  memory.freeUnused();
  const again = memory.take(mib);
  expect(again.buffer).toBe(two.buffer);
  memory.release(again);
  // One of the two was never taken since.
  memory.freeUnused();
  const [third, fourth] = [memory.take(mib), memory.take(mib)];
  expect(third.buffer).toBe(two.buffer);
  expect(fourth.buffer).not.toBe(one.buffer);
});

test('does not take back memory that it did not lend', () => {
  const memory = createReadMemory();
  const foreign = Buffer.alloc(mib);
  memory.release(foreign);
  expect(memory.take(mib).buffer).not.toBe(foreign.buffer);
});
