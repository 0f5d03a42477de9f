import { expect, test, vi } from 'vitest';
import { createAbortListeners } from './abort-listeners.ts';

test('calls with the same signal share a listener, which is removed when all of them have ended', () => {
  const aborted: AbortSignal[] = [];
  const listeners = createAbortListeners((signal) => aborted.push(signal));
  const { signal } = new AbortController();
  const [add, remove] = [vi.spyOn(signal, 'addEventListener'), vi.spyOn(signal, 'removeEventListener')];
  for (let i = 0; i < 3; i++) listeners.add(signal);
  expect(add).toHaveBeenCalledOnce();
  listeners.remove(signal);
  listeners.remove(signal);
  listeners.removeUnused();
  expect(remove).not.toHaveBeenCalled();
  listeners.remove(signal);
  listeners.removeUnused();
  expect(remove).toHaveBeenCalledOnce();
  listeners.add(signal);
  expect(add).toHaveBeenCalledTimes(2);
  expect(aborted).toEqual([]);
});

test('an abort is reported once, and not after the last call has ended', () => {
  const aborted: AbortSignal[] = [];
  const listeners = createAbortListeners((signal) => aborted.push(signal));
  const [one, other] = [new AbortController(), new AbortController()];
  listeners.add(one.signal);
  listeners.add(one.signal);
  listeners.add(other.signal);
  listeners.remove(other.signal);
  listeners.removeUnused();
  one.abort();
  other.abort();
  expect(aborted).toEqual([one.signal]);
});
