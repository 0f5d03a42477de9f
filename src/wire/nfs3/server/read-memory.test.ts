import { expect, test } from 'vitest';
import { createReadMemory } from './read-memory.ts';

const mib = 1024 * 1024;

test('memory is used again, and let go when nobody needed it for a while', () => {
  const memory = createReadMemory();
  const [one, two] = [memory.take(mib), memory.take(mib)];
  memory.giveBack(one);
  memory.giveBack(two);
  memory.freeUnused();
  const again = memory.take(mib);
  expect(again.buffer).toBe(two.buffer);
  memory.giveBack(again);
  // One of the two was never taken since.
  memory.freeUnused();
  const [third, fourth] = [memory.take(mib), memory.take(mib)];
  expect(third.buffer).toBe(two.buffer);
  expect(fourth.buffer).not.toBe(one.buffer);
});

test('what is not its own it does not take', () => {
  const memory = createReadMemory();
  const foreign = Buffer.alloc(mib);
  memory.giveBack(foreign);
  expect(memory.take(mib).buffer).not.toBe(foreign.buffer);
});
