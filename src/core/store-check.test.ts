import { expect, onTestFinished, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { startServer } from '#testing/server.ts';
import { StowageError } from './errors.ts';
import type { StoreCheck } from './model.ts';
import type { StoreKind } from './ports.ts';
import { checkDeadlineMs, probeFrom } from './store-check.ts';
import { parseStoreConfig } from './store-uri.ts';

const fine: StoreCheck = { ok: true, steps: [], totalBytes: undefined, freeBytes: undefined };
const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** A store that never opens. The test decides when its checks end. */
function createControlledStore() {
  const checks: (PromiseWithResolvers<StoreCheck> & { readonly from: string | undefined })[] = [];
  const kind: StoreKind = {
    ...createNfsStoreKind(),
    open: () =>
      Promise.reject(new StowageError('not open', { code: 'unavailable', reason: 'store-closing', action: '' })),
    probe: (_config, _policy, _scope, from) => {
      const run = { ...Promise.withResolvers<StoreCheck>(), from };
      checks.push(run);
      return run.promise;
    },
  };
  const kinds = new Map([[kind.scheme, kind]]);
  return { checks, kind, kinds, config: parseStoreConfig('silver', 'nfs://filer/export', 'file', kinds) };
}

test('limits concurrent checks from other networks; the others wait until they run or are aborted', async () => {
  const { checks, kind, config } = createControlledStore();
  const server = await startServer({ kinds: [createLocalStoreKind(), kind] });
  onTestFinished(() => server[Symbol.asyncDispose]());
  await server.core.stores.configure([config], undefined, aCall());
  const check = (from: string, signal = new AbortController().signal) =>
    server.core.stores.check('silver', { signal, log: silentLog() }, from);
  const froms = (): readonly unknown[] => checks.map(({ from }) => from);
  const leaving = new AbortController();
  const results = ['a', 'b', 'c'].map((from) => check(from));
  const abortedCheck = expect(check('d', leaving.signal)).rejects.toThrow('no longer');
  results.push(check('e'));
  await nextTurn();
  expect(froms()).toEqual(['a', 'b', 'c']);
  leaving.abort(new Error('no longer'));
  await abortedCheck;
  checks[1]?.resolve(fine);
  await expect.poll(froms).toEqual(['a', 'b', 'c', 'e']);
  for (const { resolve } of checks) resolve(fine);
  expect(await Promise.all(results)).toEqual(Array(4).fill(fine));
});

test('a check from another network that times out does not blame a disk', async () => {
  const { kinds, config } = createControlledStore();
  const clock = createFakeClock();
  const checked = probeFrom(
    kinds,
    config,
    'docker:apps',
    { signal: new AbortController().signal, log: silentLog() },
    clock,
  );
  await nextTurn();
  clock.advance(checkDeadlineMs);
  expect(await checked).toMatchObject({
    ok: false,
    steps: [
      {
        step: 'answer',
        ok: false,
        detail: 'the check from docker:apps did not end within 15 s',
        action:
          'Try again when the machine is less busy. If it persists, check without --from: if that works, the store is not the cause.',
      },
    ],
  });
});
