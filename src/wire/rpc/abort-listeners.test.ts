import { expect, test, vi } from 'vitest';
import { createAbortListeners } from './abort-listeners.ts';

test('calls with the same signal share a listener, which is removed when they are done', () => {
  const aborted: AbortSignal[] = [];
  const watches = createAbortListeners((signal) => aborted.push(signal));
  const { signal } = new AbortController();
  const [add, remove] = [vi.spyOn(signal, 'addEventListener'), vi.spyOn(signal, 'removeEventListener')];
  for (let i = 0; i < 3; i++) watches.add(signal);
  expect(add).toHaveBeenCalledOnce();
  watches.remove(signal);
  watches.remove(signal);
  watches.removeUnused();
  expect(remove).not.toHaveBeenCalled();
  watches.remove(signal);
  watches.removeUnused();
  expect(remove).toHaveBeenCalledOnce();
  watches.add(signal);
  expect(add).toHaveBeenCalledTimes(2);
  expect(aborted).toEqual([]);
});

test('an abort is reported once, and not after the last call has ended', () => {
  const aborted: AbortSignal[] = [];
  const watches = createAbortListeners((signal) => aborted.push(signal));
  const [one, other] = [new AbortController(), new AbortController()];
  watches.add(one.signal);
  watches.add(one.signal);
  watches.add(other.signal);
  watches.remove(other.signal);
  watches.removeUnused();
  one.abort();
  other.abort();
  expect(aborted).toEqual([one.signal]);
});
