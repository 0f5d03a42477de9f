import { describe, expect, test } from 'vitest';
import { createSpin, type Spin } from './spin.ts';

const short = 0.02;
const long = 5;

function after(waits: number, ms: number, spin: Spin): Spin {
  for (let i = 0; i < waits; i++) spin.recordWait(ms);
  return spin;
}

describe('the polling time before going to sleep', () => {
  test('is zero at first, and while waits are long', () => {
    expect(createSpin(2).pollMs).toBe(0);
    expect(after(1000, long, createSpin(2)).pollMs).toBe(0);
  });

  test('is positive while waits are short, and zero again when they get longer', () => {
    const spin = after(100, short, createSpin(2));
    expect(spin.pollMs).toBeGreaterThan(short);
    expect(spin.pollMs).toBeLessThan(1);
    expect(after(100, long, spin).pollMs).toBe(0);
    expect(after(100, short, spin).pollMs).toBeGreaterThan(0);
  });

  test('does not change because of one long wait', () => {
    expect(after(1, long, after(100, short, createSpin(2))).pollMs).toBeGreaterThan(0);
  });

  test('is zero for a while after another process needed the processor', () => {
    const spin = after(100, short, createSpin(2));
    spin.recordPoll(0.001);
    expect(spin.pollMs).toBeGreaterThan(0);
    spin.recordPoll(3);
    expect(spin.pollMs).toBe(0);
    expect(after(100, short, spin).pollMs).toBeGreaterThan(0);
  });

  test('is always zero with a single processor', () => {
    expect(after(100, short, createSpin(1)).pollMs).toBe(0);
  });
});
