import { expect, test } from 'vitest';
import type { StoreCheck } from '#core/model.ts';
import { createSharedChecks } from './shared-checks.ts';

const result = (ok: boolean): StoreCheck => ({ ok, steps: [], totalBytes: undefined, freeBytes: undefined });
const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Shared checks whose runs the test ends. */
function createControlledChecks() {
  const runs: (PromiseWithResolvers<StoreCheck> & { readonly signal: AbortSignal })[] = [];
  const shared = createSharedChecks();
  const runCheck = (signal: AbortSignal): Promise<StoreCheck> => {
    const run = Promise.withResolvers<StoreCheck>();
    signal.addEventListener('abort', () => run.reject(signal.reason));
    runs.push({ ...run, signal });
    return run.promise;
  };
  const check = (signal: AbortSignal, store = 'silver'): Promise<StoreCheck> => shared(store, runCheck, signal);
  return { runs, check };
}
const neverAborted = new AbortController().signal;

test('a caller that arrives during a check waits for the next one', async () => {
  const { runs, check } = createControlledChecks();
  const [first, second, third] = [check(neverAborted), check(neverAborted), check(neverAborted)];
  expect(runs).toHaveLength(1);
  runs[0]?.resolve(result(true));
  expect(await first).toEqual(result(true));
  await nextTurn();
  expect(runs).toHaveLength(2);
  runs[1]?.resolve(result(false));
  expect(await Promise.all([second, third])).toEqual([result(false), result(false)]);
  expect(runs).toHaveLength(2);
});

test('checks of different stores do not wait for each other', () => {
  const { runs, check } = createControlledChecks();
  void check(neverAborted, 'silver');
  void check(neverAborted, 'gold');
  expect(runs).toHaveLength(2);
});

test('a failed check fails for all its callers, and not for later ones', async () => {
  const { runs, check } = createControlledChecks();
  const first = check(neverAborted);
  runs[0]?.reject(new Error('broken'));
  await expect(first).rejects.toThrow('broken');
  const next = check(neverAborted);
  runs[1]?.resolve(result(true));
  expect(await next).toEqual(result(true));
});

test('a caller that aborts returns at once, and the check ends with its last caller', async () => {
  const { runs, check } = createControlledChecks();
  const [one, other, last] = [new AbortController(), new AbortController(), new AbortController()];
  const results = [one, other, last].map(({ signal }) => check(signal).catch((cause: unknown) => cause));
  one.abort('one left');
  expect(await results[0]).toBe('one left');
  expect(runs[0]?.signal.aborted).toBe(false);
  runs[0]?.resolve(result(true));
  await nextTurn();
  other.abort('other left');
  expect(await results[1]).toBe('other left');
  expect(runs[1]?.signal.aborted).toBe(false);
  last.abort('last left');
  expect(await results[2]).toBe('last left');
  expect(runs[1]?.signal.aborted).toBe(true);
  // The aborted check does not delay the next one.
  await nextTurn();
  const next = check(neverAborted);
  runs[2]?.resolve(result(true));
  expect(await next).toEqual(result(true));
});

test('a check whose callers have all left before its start does not start', async () => {
  const { runs, check } = createControlledChecks();
  const [one, other] = [new AbortController(), new AbortController()];
  const results = [one, other].map(({ signal }) => check(signal).catch((cause: unknown) => cause));
  for (const controller of [other, one]) controller.abort('left');
  expect(await Promise.all(results)).toEqual(['left', 'left']);
  await nextTurn();
  expect(runs).toHaveLength(1);
  expect(await check(one.signal).catch((cause: unknown) => cause)).toBe('left');
});
