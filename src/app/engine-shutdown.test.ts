import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { waitForEngineShutdown } from './engine-shutdown.ts';

const { signal } = new AbortController();

/** How long the shutdown waits, if volumes are in use until `heldMs` and the engine's end is visible from `endingMs` on. */
async function waited(heldMs: number, endingMs: number): Promise<number> {
  const clock = createFakeClock();
  const began = clock.elapsed();
  const passed = (): number => clock.elapsed() - began;
  const sleeping = { ...clock, sleep: async (ms: number) => clock.advance(ms) };
  const ports = { hasVolumesInUse: () => passed() < heldMs, isShuttingDown: () => passed() >= endingMs };
  await waitForEngineShutdown({ clock: sleeping, ...ports }, signal);
  return passed();
}

describe('the shutdown of Stowage', () => {
  test('ends at once if no volume is in use', async () => {
    expect(await waited(0, 0)).toBe(0);
  });

  test('hardly waits while its engine keeps running', async () => {
    expect(await waited(1_000_000, 1_000_000)).toBe(1_000);
  });

  test('waits for the volumes if its engine shuts down, too', async () => {
    expect(await waited(5_000, 100)).toBe(5_000);
  });

  test('does not wait for ever for the engine', async () => {
    expect(await waited(1_000_000, 100)).toBe(45_000);
  });
});
