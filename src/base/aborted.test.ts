import { describe, expect, test } from 'vitest';
import { aborted, onAbort, unlessAborted } from './aborted.ts';

const ended = (): AbortSignal => AbortSignal.abort(new Error('stopped'));

test('aborted resolves with the signal, also with one that was aborted before', async () => {
  const controller = new AbortController();
  const end = aborted(controller.signal);
  controller.abort();
  await end;
  await aborted(ended());
});

describe('onAbort', () => {
  test('calls once, at once where the signal was aborted before', () => {
    let calls = 0;
    using _before = onAbort(ended(), () => calls++);
    expect(calls).toBe(1);
    const controller = new AbortController();
    using _later = onAbort(controller.signal, () => calls++);
    expect(calls).toBe(1);
    controller.abort();
    expect(calls).toBe(2);
  });

  test('does not call after it was disposed of', () => {
    let calls = 0;
    const controller = new AbortController();
    onAbort(controller.signal, () => calls++)[Symbol.dispose]();
    controller.abort();
    expect(calls).toBe(0);
  });
});

describe('unlessAborted', () => {
  test('gives what the work gives, or throws what it throws', async () => {
    const { signal } = new AbortController();
    expect(await unlessAborted(Promise.resolve('done'), signal)).toBe('done');
    await expect(unlessAborted(Promise.reject(new Error('failed')), signal)).rejects.toThrow('failed');
  });

  test('throws the reason of the signal, whatever becomes of the work', async () => {
    const controller = new AbortController();
    const { promise, reject } = Promise.withResolvers<void>();
    const waiting = unlessAborted(promise, controller.signal);
    controller.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    // It is nobody's any more, and no unhandled rejection.
    reject(new Error('later'));
    await expect(unlessAborted(Promise.resolve(), ended())).rejects.toThrow('stopped');
    await expect(unlessAborted(Promise.reject(new Error('failed')), ended())).rejects.toThrow('stopped');
  });
});
