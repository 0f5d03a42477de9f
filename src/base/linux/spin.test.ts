import { describe, expect, test } from 'vitest';
import { createSpin, type Spin } from './spin.ts';

const short = 0.02;
const long = 5;

function after(waits: number, ms: number, spin: Spin): Spin {
  for (let i = 0; i < waits; i++) spin.waited(ms);
  return spin;
}

describe('how long to look before going to sleep', () => {
  test('not at all at first, and not when what is waited for takes long', () => {
    expect(createSpin(2).ms).toBe(0);
    expect(after(1000, long, createSpin(2)).ms).toBe(0);
  });

  test('for a moment while what is waited for comes soon, and no longer when it does not', () => {
    const spin = after(100, short, createSpin(2));
    expect(spin.ms).toBeGreaterThan(short);
    expect(spin.ms).toBeLessThan(1);
    expect(after(100, long, spin).ms).toBe(0);
    expect(after(100, short, spin).ms).toBeGreaterThan(0);
  });

  test('one long wait among short ones changes nothing', () => {
    expect(after(1, long, after(100, short, createSpin(2))).ms).toBeGreaterThan(0);
  });

  test('not for a while after somebody else wanted the processor', () => {
    const spin = after(100, short, createSpin(2));
    spin.looked(0.001);
    expect(spin.ms).toBeGreaterThan(0);
    spin.looked(3);
    expect(spin.ms).toBe(0);
    expect(after(100, short, spin).ms).toBeGreaterThan(0);
  });

  test('never where there is only one processor', () => {
    expect(after(100, short, createSpin(1)).ms).toBe(0);
  });
});
