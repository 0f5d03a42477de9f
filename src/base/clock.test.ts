import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { DeadlineExceeded, systemClock } from './clock.ts';

const clock = systemClock();
const never = new AbortController().signal;

test('now is the time of day in milliseconds', () => {
  const before = Date.now();
  const now = clock.now();
  expect(now).toBeGreaterThanOrEqual(before);
  expect(now).toBeLessThanOrEqual(Date.now());
});

test('what has elapsed is the same in another process', () => {
  const before = clock.elapsed();
  const script = `
    import { systemClock } from ${JSON.stringify(join(import.meta.dirname, 'clock.ts'))};
    console.log(systemClock().elapsed());`;
  const flags = ['--disable-warning=ExperimentalWarning', '--input-type=module-typescript', '--eval', script];
  const there = Number(execFileSync(process.execPath, flags, { timeout: 20_000 }));
  expect(there).toBeGreaterThan(before);
  expect(there).toBeLessThan(clock.elapsed());
});

describe('sleep', () => {
  test('lasts as long as it was told to', async () => {
    const began = performance.now();
    await clock.sleep(30, never);
    // Timers count in whole milliseconds and may round the first one away.
    expect(performance.now() - began).toBeGreaterThanOrEqual(29);
  });

  test('ends at once, with an AbortError that carries the reason, when its signal does', async () => {
    const stop = new AbortController();
    const asleep = clock.sleep(3_600_000, stop.signal);
    const reason = new Error('shutting down');
    stop.abort(reason);
    await expect(asleep).rejects.toMatchObject({ name: 'AbortError', cause: reason });
  });

  test('does not begin with a signal that has ended', async () => {
    await expect(clock.sleep(3_600_000, AbortSignal.abort())).rejects.toMatchObject({ name: 'AbortError' });
  });
});

describe('deadline', () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  test('its signal ends when the time is over, and says so', () => {
    using limit = clock.deadline(100, never);
    vi.advanceTimersByTime(99);
    expect(limit.signal.aborted).toBe(false);
    vi.advanceTimersByTime(1);
    expect(limit.signal.aborted).toBe(true);
    expect(limit.signal.reason).toBeInstanceOf(DeadlineExceeded);
    expect(limit.signal.reason).toMatchObject({
      name: 'DeadlineExceeded',
      message: 'no answer within 100 ms',
      ms: 100,
    });
  });

  test('its signal ends with its parent, for the parent’s reason', () => {
    const parent = new AbortController();
    using limit = clock.deadline(100, parent.signal);
    const reason = new Error('client went away');
    parent.abort(reason);
    expect(limit.signal.reason).toBe(reason);
  });

  test('one inside another never widens it', () => {
    using outer = clock.deadline(50, never);
    using inner = clock.deadline(1000, outer.signal);
    vi.advanceTimersByTime(50);
    expect(inner.signal.reason).toMatchObject({ ms: 50 });
  });

  test('once disposed of, its time no longer counts', () => {
    const limit = clock.deadline(100, never);
    limit[Symbol.dispose]();
    expect(vi.getTimerCount()).toBe(0);
    vi.advanceTimersByTime(1000);
    expect(limit.signal.aborted).toBe(false);
  });
});
