import { expect, test, vi } from 'vitest';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { ErrorCode } from './error-codes.ts';
import { relayed, type StowageError } from './errors.ts';
import type { StoreName } from './model.ts';
import type { Store } from './ports.ts';
import { createStoreLiveness, type StoreLiveness } from './store-liveness.ts';
import type { Stores } from './stores.ts';

const silver = 'silver' as StoreName;
const failure = (code: ErrorCode, reason: string): StowageError =>
  relayed('it failed', { code, reason, action: 'Look.' });
const denied = failure('unavailable', 'nfs-hangs-up');

function setUp(ping: () => Promise<void>, verbs: object = {}) {
  const clock = createFakeClock();
  const store = { changedByOthers: {}, ping, ...verbs } as unknown as Store;
  const stores = {
    list: () => [{ config: { name: silver }, store }],
    view: () => ({ store }),
    use: (_name: string, ask: (open: Store) => Promise<unknown>) => ask(store),
  } as unknown as Pick<Stores, 'list' | 'view' | 'use'>;
  return { clock, liveness: createStoreLiveness({ clock, stores: () => stores }) };
}

const failingLookup = (liveness: StoreLiveness, thrown: Error): Promise<boolean> =>
  liveness.lookUp(silver, aCall(), () => Promise.reject(thrown));

test('records a denial that arrives after the timeout', async () => {
  const { promise, reject } = Promise.withResolvers<void>();
  const { clock, liveness } = setUp(() => promise);
  const silentStores = liveness.findSilent([silver], aCall());
  clock.advance(2_000);
  expect(await silentStores).toEqual(new Set([silver]));
  expect(liveness.denialOf(silver)).toBeUndefined();
  reject(denied);
  await vi.waitFor(() => expect(liveness.denialOf(silver)).toBe(denied));
});

test('has no denial for a store that was removed in the meantime', () => {
  const { liveness } = setUp(() => Promise.reject(denied));
  expect(liveness.denialOf('removed' as StoreName)).toBeUndefined();
});

test.each([
  ['list', 'names'],
  ['lookUp', 'get'],
] as const)(
  'keeps the denial of a %s while the server answers pings, until the store allows it',
  async (question, verb) => {
    let verbs: () => Promise<undefined> = () => Promise.reject(denied);
    const { liveness } = setUp(() => Promise.resolve(), { [verb]: () => verbs() });
    expect(await liveness[question](silver, aCall(), () => Promise.reject(denied))).toBe(false);
    for (let n = 0; n < 2; n++) {
      expect(await liveness.findSilent([silver], aCall())).toEqual(new Set());
      expect(liveness.denialOf(silver)).toBe(denied);
    }
    verbs = () => Promise.resolve(undefined);
    expect(await liveness.findSilent([silver], aCall())).toEqual(new Set());
    expect(liveness.denialOf(silver)).toBeUndefined();
  },
);

test.each(['list', 'lookUp'] as const)('uses a ping to find out why a %s is not answered in time', async (question) => {
  const { clock, liveness } = setUp(() => Promise.reject(denied));
  const asked = Promise.withResolvers<void>();
  const isAnswered = liveness[question](silver, aCall(), () => {
    asked.resolve();
    return new Promise(() => undefined);
  });
  await asked.promise;
  clock.advance(3_000);
  expect(await isAnswered).toBe(false);
  expect(liveness.denialOf(silver)).toBe(denied);
});

test.each([
  ['deadline', 'nfs-timeout', 'nfs-timeout'],
  ['unavailable', 'nfs-connection-lost', 'nfs-refused'],
  ['unavailable', 'nfs-no-route', 'nfs-hangs-up'],
  ['unavailable', 'nfs-refused', 'nfs-hangs-up'],
] as const)(
  'forgets a denial when a lookup fails with %s %s (a ping with %s), since the network is the problem now',
  async (code, reason, ping) => {
    let currentFailure: Error = denied;
    const { liveness } = setUp(() => Promise.reject(currentFailure));
    await liveness.findSilent([silver], aCall());
    expect(liveness.denialOf(silver)).toBe(denied);
    currentFailure = failure('unavailable', ping);
    expect(await failingLookup(liveness, failure(code, reason))).toBe(false);
    expect(liveness.denialOf(silver)).toBeUndefined();
  },
);

test.each(['nfs-connection-lost', 'nfs-timeout'])(
  'keeps a denial when a lookup fails with %s and the server still closes every connection',
  async (reason) => {
    const { liveness } = setUp(() => Promise.reject(denied));
    await liveness.findSilent([silver], aCall());
    await failingLookup(liveness, failure('unavailable', reason));
    expect(liveness.denialOf(silver)).toBe(denied);
  },
);
