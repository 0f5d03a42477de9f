import { describe, expect, test } from 'vitest';
import { aborted, onAbort, unlessAborted, untilAborted } from './aborted.ts';

const abortedSignal = (): AbortSignal => AbortSignal.abort(new Error('stopped'));

test('aborted() resolves when the signal is aborted, also if it was aborted before', async () => {
  const controller = new AbortController();
  const resolved = aborted(controller.signal);
  controller.abort();
  await resolved;
  await aborted(abortedSignal());
});

describe('onAbort', () => {
  test('calls once, and immediately if the signal is already aborted', () => {
    let calls = 0;
    using _before = onAbort(abortedSignal(), () => calls++);
    expect(calls).toBe(1);
    const controller = new AbortController();
    using _later = onAbort(controller.signal, () => calls++);
    expect(calls).toBe(1);
    controller.abort();
    expect(calls).toBe(2);
  });

  test('does not call after disposal', () => {
    let calls = 0;
    const controller = new AbortController();
    onAbort(controller.signal, () => calls++)[Symbol.dispose]();
    controller.abort();
    expect(calls).toBe(0);
  });
});

describe('unlessAborted', () => {
  test("returns the work's result or throws its error", async () => {
    const { signal } = new AbortController();
    expect(await unlessAborted(Promise.resolve('done'), signal)).toBe('done');
    await expect(unlessAborted(Promise.reject(new Error('failed')), signal)).rejects.toThrow('failed');
  });

  test("throws the signal's reason, whatever the outcome of the work", async () => {
    const controller = new AbortController();
    const { promise, reject } = Promise.withResolvers<void>();
    const waiting = unlessAborted(promise, controller.signal);
    controller.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    // A later failure of the work must not become an unhandled rejection.
    reject(new Error('later'));
    await expect(unlessAborted(Promise.resolve(), abortedSignal())).rejects.toThrow('stopped');
    await expect(unlessAborted(Promise.reject(new Error('failed')), abortedSignal())).rejects.toThrow('stopped');
  });
});

describe('untilAborted', () => {
  test('returns when the work ends, or throws its error', async () => {
    const { signal } = new AbortController();
    await untilAborted(Promise.resolve('done'), signal);
    await expect(untilAborted(Promise.reject(new Error('failed')), signal)).rejects.toThrow('failed');
  });

  test('returns when the signal is aborted, whatever the outcome of the work', async () => {
    const controller = new AbortController();
    const { promise, reject } = Promise.withResolvers<void>();
    const waiting = untilAborted(promise, controller.signal);
    controller.abort();
    await waiting;
    // A later failure of the work must not become an unhandled rejection.
    reject(new Error('later'));
    await untilAborted(Promise.reject(new Error('failed')), abortedSignal());
  });
});
