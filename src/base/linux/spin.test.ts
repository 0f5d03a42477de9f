import { describe, expect, test } from 'vitest';
import { createSpin, type Spin } from './spin.ts';

const shortWaitMs = 0.02;
const longWaitMs = 5;

function spinAfter(waits: number, ms: number, spin: Spin): Spin {
  for (let i = 0; i < waits; i++) spin.recordWait(ms);
  return spin;
}

describe('the polling time before going to sleep', () => {
  test('is zero at first, and while waits are long', () => {
    expect(createSpin(2).pollMs).toBe(0);
    expect(spinAfter(1000, longWaitMs, createSpin(2)).pollMs).toBe(0);
  });

  test('is positive while waits are short, and zero again when they get longer', () => {
    const spin = spinAfter(100, shortWaitMs, createSpin(2));
    expect(spin.pollMs).toBeGreaterThan(shortWaitMs);
    expect(spin.pollMs).toBeLessThan(1);
    expect(spinAfter(100, longWaitMs, spin).pollMs).toBe(0);
    expect(spinAfter(100, shortWaitMs, spin).pollMs).toBeGreaterThan(0);
  });

  test('does not change because of one long wait', () => {
    expect(spinAfter(1, longWaitMs, spinAfter(100, shortWaitMs, createSpin(2))).pollMs).toBeGreaterThan(0);
  });

  test('is zero for a while after another process needed the processor', () => {
    const spin = spinAfter(100, shortWaitMs, createSpin(2));
    spin.recordPoll(0.001);
    expect(spin.pollMs).toBeGreaterThan(0);
    spin.recordPoll(3);
    expect(spin.pollMs).toBe(0);
    expect(spinAfter(100, shortWaitMs, spin).pollMs).toBeGreaterThan(0);
  });

  test('is always zero with a single processor', () => {
    expect(spinAfter(100, shortWaitMs, createSpin(1)).pollMs).toBe(0);
  });
});
