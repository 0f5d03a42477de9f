import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { DeadlineExceeded, systemClock } from './clock.ts';

const clock = systemClock();
const neverAborted = new AbortController().signal;

test('now() is the wall-clock time in milliseconds', () => {
  const before = Date.now();
  const now = clock.now();
  expect(now).toBeGreaterThanOrEqual(before);
  expect(now).toBeLessThanOrEqual(Date.now());
});

test('elapsed() is the same in another process', () => {
  const before = clock.elapsed();
  const script = `
    import { systemClock } from ${JSON.stringify(join(import.meta.dirname, 'clock.ts'))};
    console.log(systemClock().elapsed());`;
  const flags = ['--disable-warning=ExperimentalWarning', '--input-type=module-typescript', '--eval', script];
  const elapsedElsewhere = Number(execFileSync(process.execPath, flags, { timeout: 20_000 }));
  expect(elapsedElsewhere).toBeGreaterThan(before);
  expect(elapsedElsewhere).toBeLessThan(clock.elapsed());
});

describe('sleep', () => {
  test('sleeps for the given time', async () => {
    const began = performance.now();
    await clock.sleep(30, neverAborted);
    // Timers count in whole milliseconds and may round down the first one.
    expect(performance.now() - began).toBeGreaterThanOrEqual(29);
  });

  test('rejects with an AbortError that carries the reason as soon as its signal is aborted', async () => {
    const controller = new AbortController();
    const sleeping = clock.sleep(3_600_000, controller.signal);
    const reason = new Error('shutting down');
    controller.abort(reason);
    await expect(sleeping).rejects.toMatchObject({ name: 'AbortError', cause: reason });
  });

  test('rejects at once if its signal is already aborted', async () => {
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

  test('aborts its signal when the time is over, with DeadlineExceeded as the reason', () => {
    using limit = clock.deadline(100, neverAborted);
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

  test('aborts its signal with its parent, with the parent’s reason', () => {
    const parent = new AbortController();
    using limit = clock.deadline(100, parent.signal);
    const reason = new Error('client went away');
    parent.abort(reason);
    expect(limit.signal.reason).toBe(reason);
  });

  test('cannot be extended by a nested deadline', () => {
    using outer = clock.deadline(50, neverAborted);
    using inner = clock.deadline(1000, outer.signal);
    vi.advanceTimersByTime(50);
    expect(inner.signal.reason).toMatchObject({ ms: 50 });
  });

  test('does not abort its signal after disposal', () => {
    const limit = clock.deadline(100, neverAborted);
    limit[Symbol.dispose]();
    expect(vi.getTimerCount()).toBe(0);
    vi.advanceTimersByTime(1000);
    expect(limit.signal.aborted).toBe(false);
  });
});
