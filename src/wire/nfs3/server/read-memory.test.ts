import { expect, test } from 'vitest';
import { createReadMemory } from './read-memory.ts';

const mib = 1024 * 1024;

test('reuses memory, and frees it when no read has needed it for a while', () => {
  const memory = createReadMemory();
  const [one, two] = [memory.take(mib), memory.take(mib)];
  memory.release(one);
  memory.release(two);
  memory.freeUnused();
  const reused = memory.take(mib);
  expect(reused.buffer).toBe(two.buffer);
  memory.release(reused);
  // One of the two buffers was not used since the last call.
  memory.freeUnused();
  const [third, fourth] = [memory.take(mib), memory.take(mib)];
  expect(third.buffer).toBe(two.buffer);
  expect(fourth.buffer).not.toBe(one.buffer);
});

test('ignores released memory that it did not hand out', () => {
  const memory = createReadMemory();
  const otherBuffer = Buffer.alloc(mib);
  memory.release(otherBuffer);
  expect(memory.take(mib).buffer).not.toBe(otherBuffer.buffer);
});
