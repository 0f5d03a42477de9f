import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { engineReleased } from './engine-end.ts';

const { signal } = new AbortController();

/** How long it is waited for, where volumes are held until then and an engine's end is seen from then on. */
async function waited(heldMs: number, endingMs: number): Promise<number> {
  const clock = createFakeClock();
  const began = clock.elapsed();
  const passed = (): number => clock.elapsed() - began;
  const sleeping = { ...clock, sleep: async (ms: number) => clock.advance(ms) };
  const ports = { isHeld: () => passed() < heldMs, isEnding: () => passed() >= endingMs };
  await engineReleased({ clock: sleeping, ...ports }, signal);
  return passed();
}

describe('who ends', () => {
  test('with nothing held, ends at once', async () => {
    expect(await waited(0, 0)).toBe(0);
  });

  test('while its engine goes on, hardly waits', async () => {
    expect(await waited(1_000_000, 1_000_000)).toBe(1_000);
  });

  test('with its engine, waits until nothing is held', async () => {
    expect(await waited(5_000, 100)).toBe(5_000);
  });

  test('with its engine, does not wait for ever', async () => {
    expect(await waited(1_000_000, 100)).toBe(45_000);
  });
});
