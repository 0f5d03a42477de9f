import { expect, test } from 'vitest';
import type { StoreCheck } from '#core/model.ts';
import { createSharedChecks } from './shared-checks.ts';

const result = (ok: boolean): StoreCheck => ({ ok, steps: [], totalBytes: undefined, freeBytes: undefined });
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Checks whose ends the test decides. */
function controlled() {
  const runs: (PromiseWithResolvers<StoreCheck> & { readonly signal: AbortSignal })[] = [];
  const shared = createSharedChecks();
  const check = (signal: AbortSignal): Promise<StoreCheck> => {
    const run = Promise.withResolvers<StoreCheck>();
    signal.addEventListener('abort', () => run.reject(signal.reason));
    runs.push({ ...run, signal });
    return run.promise;
  };
  const ask = (signal: AbortSignal, store = 'silver'): Promise<StoreCheck> => shared(store, check, signal);
  return { runs, ask };
}
const never = new AbortController().signal;

test('a caller that arrives during a check waits for the next one', async () => {
  const { runs, ask } = controlled();
  const [first, second, third] = [ask(never), ask(never), ask(never)];
  expect(runs).toHaveLength(1);
  runs[0]?.resolve(result(true));
  expect(await first).toEqual(result(true));
  await turn();
  expect(runs).toHaveLength(2);
  runs[1]?.resolve(result(false));
  expect(await Promise.all([second, third])).toEqual([result(false), result(false)]);
  expect(runs).toHaveLength(2);
});

test('checks of different stores do not wait for each other', () => {
  const { runs, ask } = controlled();
  void ask(never, 'silver');
  void ask(never, 'gold');
  expect(runs).toHaveLength(2);
});

test('a failed check fails for all its callers, and not for later ones', async () => {
  const { runs, ask } = controlled();
  const first = ask(never);
  runs[0]?.reject(new Error('broken'));
  await expect(first).rejects.toThrow('broken');
  const next = ask(never);
  runs[1]?.resolve(result(true));
  expect(await next).toEqual(result(true));
});

test('a caller that aborts returns at once, and the check ends with its last caller', async () => {
  const { runs, ask } = controlled();
  const [one, other, last] = [new AbortController(), new AbortController(), new AbortController()];
  const asked = [one, other, last].map(({ signal }) => ask(signal).catch((cause: unknown) => cause));
  one.abort('one left');
  expect(await asked[0]).toBe('one left');
  expect(runs[0]?.signal.aborted).toBe(false);
  runs[0]?.resolve(result(true));
  await turn();
  other.abort('other left');
  expect(await asked[1]).toBe('other left');
  expect(runs[1]?.signal.aborted).toBe(false);
  last.abort('last left');
  expect(await asked[2]).toBe('last left');
  expect(runs[1]?.signal.aborted).toBe(true);
  // And it delays no other check.
  await turn();
  const next = ask(never);
  runs[2]?.resolve(result(true));
  expect(await next).toEqual(result(true));
});

test('a check whose callers have all left before its start does not start', async () => {
  const { runs, ask } = controlled();
  const [one, other] = [new AbortController(), new AbortController()];
  const asked = [one, other].map(({ signal }) => ask(signal).catch((cause: unknown) => cause));
  for (const each of [other, one]) each.abort('left');
  expect(await Promise.all(asked)).toEqual(['left', 'left']);
  await turn();
  expect(runs).toHaveLength(1);
  expect(await ask(one.signal).catch((cause: unknown) => cause)).toBe('left');
});
