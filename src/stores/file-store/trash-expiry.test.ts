import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decideExpiry, type Expiry, type Observer, parseExpiry, takeOverWaitMs } from './trash-expiry.ts';

const hour = 3_600_000;
const day = 24 * hour;
const week = 7 * day;

const entry = (overrides: Partial<Expiry> = {}): Expiry => ({
  expiresAt: 100 * day,
  retention: 2 * day,
  owner: 'owner',
  seen: { by: 'owner', at: 10 * day },
  ...overrides,
});
const owner = (more: Partial<Observer> = {}): Observer => ({
  instance: 'owner',
  isShared: true,
  observed: 12 * day,
  serverNow: 100 * day,
  ...more,
});
const other = (more: Partial<Observer> = {}): Observer => owner({ instance: 'other', ...more });

describe('the owner', () => {
  test("purges when the date has come by the server's clock and it has seen the entry for the whole retention", () => {
    expect(decideExpiry(entry(), owner())).toEqual({ verdict: 'purge' });
    expect(decideExpiry(entry(), owner({ serverNow: 100 * day - 1 }))).toEqual({ verdict: 'keep' });
    expect(decideExpiry(entry(), owner({ observed: 12 * day - 1 }))).toEqual({ verdict: 'keep' });
  });

  test('sets the date of an entry that has none', () => {
    const { expiresAt: _expiresAt, ...undated } = entry();
    const expiry = { ...entry(), expiresAt: 102 * day, seen: { by: 'owner', at: 12 * day } };
    expect(decideExpiry(undated, owner())).toEqual({ verdict: 'record', expiry });
  });

  test('starts counting again after it lost its count', () => {
    const expiry = entry({ seen: { by: 'owner', at: 0 } });
    expect(decideExpiry(entry(), owner({ observed: 0 }))).toEqual({ verdict: 'record', expiry });
  });

  test('waits if its last minutes were not counted', () => {
    expect(decideExpiry(entry(), owner({ observed: 10 * day - 60_000 }))).toEqual({ verdict: 'keep' });
  });

  test('of a store that is not shared is the host that has it, without the observations of another host', () => {
    const expiry = entry({ seen: { by: 'other', at: 12 * day } });
    expect(decideExpiry(entry(), other({ isShared: false }))).toEqual({ verdict: 'record', expiry });
    expect(decideExpiry(expiry, other({ isShared: false, observed: 14 * day }))).toEqual({ verdict: 'purge' });
  });
});

describe('another host', () => {
  test('sets the date of an old entry, and leaves the purge to its owner', () => {
    const { expiresAt: _expiresAt, seen: _seen, ...undated } = entry();
    expect(decideExpiry(undated, other())).toEqual({ verdict: 'record', expiry: { ...undated, expiresAt: 102 * day } });
  });

  test('does nothing while the owner may come back', () => {
    expect(decideExpiry(entry(), other({ observed: 1000 * day, serverNow: 100 * day + hour - 1 }))).toEqual({
      verdict: 'keep',
    });
  });

  const overdue = 100 * day + hour;
  const entryWithSuccessor = entry({ successor: { by: 'other', at: 12 * day, since: overdue } });

  test('becomes the successor of an owner that did not come back, and waits for the retention and a week', () => {
    expect(decideExpiry(entry(), other({ serverNow: overdue }))).toEqual({
      verdict: 'record',
      expiry: entryWithSuccessor,
    });
    const overdueHost = { observed: 12 * day + 9 * day, serverNow: 107 * day };
    expect(decideExpiry(entryWithSuccessor, other(overdueHost))).toEqual({ verdict: 'purge' });
    expect(decideExpiry(entryWithSuccessor, other({ ...overdueHost, observed: overdueHost.observed - 1 }))).toEqual({
      verdict: 'keep',
    });
    expect(decideExpiry(entryWithSuccessor, other({ ...overdueHost, serverNow: overdueHost.serverNow - 1 }))).toEqual({
      verdict: 'keep',
    });
    expect(decideExpiry(entryWithSuccessor, owner({ observed: 12 * day, serverNow: overdue }))).toEqual({
      verdict: 'purge',
    });
  });

  test.each([
    ['that should have purged the entry long ago', overdue + 18 * day + 1],
    ['whose recorded time is far in the future', overdue - 18 * day - 1],
  ])('replaces a successor %s', (_when, serverNow) => {
    const expired = { ...entryWithSuccessor, expiresAt: 50 * day };
    const third = { ...other({ serverNow }), instance: 'third' };
    const successor = { by: 'third', at: 12 * day, since: serverNow };
    expect(decideExpiry(expired, third)).toEqual({ verdict: 'record', expiry: { ...expired, successor } });
    const early = serverNow > overdue ? serverNow - 1 : serverNow + 1;
    expect(decideExpiry(expired, { ...third, serverNow: early, observed: 1000 * day })).toEqual({ verdict: 'keep' });
  });
});

test('no host purges an entry before its retention is over, whatever the clocks say', () => {
  const time = fc.nat({ max: 500 * day });
  const instance = fc.constantFrom('owner', 'other', 'third');
  // The host runs for all of that time, for a part of it, or loses its count.
  const running = fc.oneof(fc.constant(1), fc.double({ min: 0, max: 1, noNaN: true }), fc.constant(undefined));
  const observation = fc.record({ instance, running, passed: fc.nat({ max: 40 * day }), serverNow: time });
  const setting = fc.record({ serverNow: time, retention: fc.nat({ max: 20 * day }), isShared: fc.boolean() });
  const counts = fc.record({ owner: time, other: time, third: time });
  fc.assert(
    fc.property(
      setting,
      counts,
      fc.array(observation, { maxLength: 40 }),
      ({ serverNow, retention, isShared }, initialCounts, observations) => {
        const observed: Record<string, number> = { ...initialCounts };
        const lastSeenAge = new Map<string, number>();
        const seen = { by: 'owner', at: initialCounts.owner };
        let expiry: Expiry = { expiresAt: serverNow + retention, retention, owner: 'owner', seen };
        let age = 0;
        for (const step of observations) {
          age += step.passed;
          const since = age - (lastSeenAge.get(step.instance) ?? 0);
          lastSeenAge.set(step.instance, age);
          const before = observed[step.instance] ?? 0;
          const count = step.running === undefined ? 0 : before + Math.floor(step.running * since);
          observed[step.instance] = count;
          const decision = decideExpiry(expiry, { ...step, isShared, observed: count });
          if (decision.verdict === 'record') expiry = decision.expiry;
          if (decision.verdict !== 'purge') continue;
          const isOwner = !isShared || step.instance === 'owner';
          expect(age).toBeGreaterThanOrEqual(isOwner ? retention : takeOverWaitMs(retention));
          return;
        }
      },
    ),
    { numRuns: 2000 },
  );
});

test('another host waits for the retention again, and at least for a week', () => {
  expect([day, week, 30 * day].map(takeOverWaitMs)).toEqual([8 * day, 14 * day, 60 * day]);
});

describe('the stored expiry', () => {
  test('is read back unchanged', () => {
    const full = entry({ successor: { by: 'other', at: 1, since: 2 } });
    expect(parseExpiry(JSON.parse(JSON.stringify(full)))).toEqual(full);
    const { expiresAt: _expiresAt, ...undated } = full;
    expect(parseExpiry(undated)).toEqual(undated);
  });

  test.each([
    ['text instead of an object', 'soon'],
    ['a list', []],
    ['null', null],
    ['a date in words', { ...entry(), expiresAt: 'soon' }],
    ['a negative date', { ...entry(), expiresAt: -1 }],
    ['a date that is not an integer', { ...entry(), expiresAt: 1e300 }],
    ['no retention', { ...entry(), retention: undefined }],
    ['no owner', { ...entry(), owner: 7 }],
  ])('with %s never expires', (_what, value) => {
    expect(parseExpiry(value)).toBe('unreadable');
  });

  test.each([['soon'], [{ by: 7, at: 1 }], [{ by: 'owner', at: -1 }]])('ignores an invalid observation: %j', (seen) => {
    const { seen: _seen, ...unseen } = entry();
    expect(parseExpiry({ ...unseen, seen, successor: seen })).toEqual(unseen);
  });
});
