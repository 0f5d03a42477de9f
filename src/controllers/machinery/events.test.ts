import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createWaitedClock, type WaitedClock } from '#testing/kube-clock.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { KubeError } from '#wire/kube/errors.ts';
import { events as resource } from '#wire/kube/resources.ts';
import type { KubeEvent } from '#wire/kube/types.ts';
import { errorNote } from './error-note.ts';
import { createEvents, type Events, type EventsOptions, type Report } from './events.ts';

let api: FakeKubeApi;
let client: KubeClient;
let clock: WaitedClock;
let abort: AbortController;
let ended: Promise<void>;

beforeEach(async () => {
  api = await startKubeApi();
  clock = createWaitedClock();
  abort = new AbortController();
  client = createKubeClient({ access: api.access, clock, userAgent: 'x' });
  ended = Promise.resolve();
});
afterEach(async () => {
  abort.abort();
  await ended;
  client[Symbol.dispose]();
  await api[Symbol.asyncDispose]();
});

function start(options: Partial<EventsOptions> = {}): Events {
  const events = createEvents({
    client,
    clock,
    controller: 'stowage.dev/controller',
    instance: 'pod-1',
    random: () => 1,
    ...options,
  });
  ended = events.run({ signal: abort.signal, log: silentLog() });
  return events;
}
const claim = { apiVersion: 'v1', kind: 'PersistentVolumeClaim', namespace: 'shop', name: 'data', uid: 'u1' };
const report = (more: Partial<Report> = {}): Report => ({
  regarding: claim,
  type: 'Warning',
  reason: 'ProvisioningFailed',
  action: 'Provision',
  note: 'no room',
  ...more,
});
async function listEvents(): Promise<readonly KubeEvent[]> {
  const all: KubeEvent[] = [];
  for await (const page of client.list(resource, {}, abort.signal)) all.push(...page.items);
  return all;
}
const writeCount = (): number => api.requests.filter((one) => !one.startsWith('GET')).length;

test('an Event has the note, the object and the reporting controller', async () => {
  start().report(report());
  await expect.poll(writeCount).toBe(1);
  const [event] = await listEvents();
  expect(event).toMatchObject({
    apiVersion: 'events.k8s.io/v1',
    kind: 'Event',
    regarding: claim,
    type: 'Warning',
    reason: 'ProvisioningFailed',
    action: 'Provision',
    note: 'no room',
    reportingController: 'stowage.dev/controller',
    reportingInstance: 'pod-1',
    eventTime: '2026-01-01T00:00:00.000000Z',
    metadata: { namespace: 'shop' },
  });
  expect(event?.metadata.name).toMatch(/^data\.[0-9a-f]{16}$/);
});

test('an Event about a cluster-scoped object is in the namespace default', async () => {
  start().report(report({ regarding: { apiVersion: 'v1', kind: 'PersistentVolume', name: 'pv'.repeat(120) } }));
  await expect.poll(writeCount).toBe(1);
  const [event] = await listEvents();
  expect(event?.metadata.namespace).toBe('default');
  expect(event?.metadata.name?.length).toBe(253);
});

describe('a repeated report', () => {
  test('is not written for five minutes, then once with its count', async () => {
    const events = start();
    events.report(report());
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(1);
    for (let i = 0; i < 10; i++) events.report(report());
    clock.advance(299_999);
    events.report(report());
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(1);
    clock.advance(1);
    events.report(report());
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(2);
    const all = await listEvents();
    expect(all.map(({ series }) => series)).toEqual([{ count: 13, lastObservedTime: '2026-01-01T00:05:00.000000Z' }]);
  });

  test('is enqueued once', async () => {
    const events = createEvents({ client, clock, controller: 'c', instance: 'i' });
    for (let i = 0; i < 5; i++) events.report(report());
    expect(events.waiting).toBe(1);
  });

  test('with another note becomes another Event after five minutes', async () => {
    const events = start();
    events.report(report());
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(1);
    events.report(report({ note: 'no server' }));
    clock.advance(300_000);
    events.report(report({ note: 'no server' }));
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(2);
    expect((await listEvents()).map(({ note, series }) => [note, series])).toEqual([
      ['no room', undefined],
      ['no server', undefined],
    ]);
  });

  test('is written as a new Event if the API server has deleted the first', async () => {
    const events = start();
    events.report(report());
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(1);
    const [event] = await listEvents();
    api.remove('/apis/events.k8s.io/v1/namespaces/shop/events', event?.metadata.name ?? '');
    clock.advance(300_000);
    events.report(report());
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(3);
    expect(await listEvents()).toMatchObject([{ note: 'no room' }]);
  });

  test('after an hour is a new Event', async () => {
    const events = start();
    events.report(report());
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(1);
    clock.advance(3_600_000);
    events.report(report());
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(2);
    expect((await listEvents()).length).toBe(2);
  });

  test.each([
    ['for another reason', { reason: 'ProvisioningSlow' }],
    ['on another object', { regarding: { ...claim, uid: 'u2' } }],
    ['of another type', { type: 'Normal' as const }],
  ])('with %s is written at once', async (_how, more) => {
    const events = start();
    events.report(report());
    events.report(report(more));
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(2);
  });
});

describe('the last report of a subject', () => {
  const unhealthy = report({ reason: 'Abnormal', action: 'Monitor', note: 'unhealthy' });
  const healthy = report({ type: 'Normal', reason: 'Normal', action: 'Monitor', note: 'healthy again' });
  const timeOf = ({ eventTime, series }: KubeEvent): string => series?.lastObservedTime ?? eventTime;
  /** The note of the newest Event, if a user sorts them by time. */
  const newestNote = async (): Promise<string | undefined> =>
    (await listEvents()).toSorted((a, b) => (timeOf(a) < timeOf(b) ? -1 : 1)).at(-1)?.note;

  async function reportAndWait(events: Events, what: Report): Promise<void> {
    events.report(what);
    await expect.poll(() => events.waiting).toBe(0);
  }
  /** Reports another Event, so that all Events that are due are written, too. */
  const reportOther = (events: Events): Promise<void> =>
    reportAndWait(events, report({ reason: 'Other', action: 'Other' }));

  test('is written again within five minutes if another reason was reported in between', async () => {
    const events = start();
    await reportAndWait(events, unhealthy);
    clock.advance(60_000);
    await reportAndWait(events, healthy);
    clock.advance(60_000);
    await reportAndWait(events, unhealthy);
    expect(writeCount()).toBe(3);
    expect(await newestNote()).toBe('unhealthy');
  });

  test('is written when it is due, without another report', async () => {
    const events = start();
    await reportAndWait(events, report({ note: 'add the label' }));
    clock.advance(30_000);
    await reportAndWait(events, report({ note: 'no room' }));
    clock.advance(269_999);
    await reportOther(events);
    expect(writeCount()).toBe(2);
    clock.advance(1);
    await expect.poll(writeCount).toBe(3);
    const all = (await listEvents()).filter(({ reason }) => reason !== 'Other');
    expect(all.map(({ note, eventTime }) => [note, eventTime])).toEqual([
      ['add the label', '2026-01-01T00:00:00.000000Z'],
      // The time of the report, not of the write.
      ['no room', '2026-01-01T00:00:30.000000Z'],
    ]);
  });

  test('with the same note is counted when it is due', async () => {
    const events = start();
    await reportAndWait(events, report());
    clock.advance(1_000);
    await reportAndWait(events, report());
    clock.advance(299_000);
    await expect.poll(writeCount).toBe(2);
    expect((await listEvents()).map(({ series }) => series)).toEqual([
      { count: 2, lastObservedTime: '2026-01-01T00:00:01.000000Z' },
    ]);
    clock.advance(600_000);
    await reportOther(events);
    expect(writeCount()).toBe(3);
  });

  test('is written at most every 30 s per reason if the reason changes each second, and the last one is written in the end', async () => {
    const events = start();
    for (let second = 0; second < 121; second++) {
      await reportAndWait(events, second % 2 === 0 ? unhealthy : healthy);
      clock.advance(1_000);
    }
    expect(writeCount()).toBeLessThanOrEqual(10);
    clock.advance(30_000);
    await expect.poll(newestNote).toBe('unhealthy');
    await expect.poll(() => events.waiting).toBe(0);
    const before = writeCount();
    clock.advance(600_000);
    await reportOther(events);
    expect(writeCount()).toBe(before + 1);
  });

  test('stays the last: an earlier delayed report is dropped', async () => {
    const events = start();
    await reportAndWait(events, unhealthy);
    await reportAndWait(events, { ...unhealthy, note: 'still unhealthy' });
    await reportAndWait(events, healthy);
    expect(writeCount()).toBe(2);
    clock.advance(300_000);
    await reportOther(events);
    expect((await listEvents()).map(({ note }) => note)).toEqual(['unhealthy', 'healthy again', 'no room']);
  });

  test('stays the last if it is a warning, which is written before an earlier normal Event', async () => {
    const events = createEvents({ client, clock, controller: 'c', instance: 'i' });
    for (const event of [healthy, unhealthy]) events.report(event);
    const otherClaim = { ...claim, uid: 'u2' };
    events.report({ ...healthy, regarding: otherClaim, note: 'another' });
    ended = events.run({ signal: abort.signal, log: silentLog() });
    await expect.poll(() => events.waiting).toBe(0);
    expect((await listEvents()).map(({ note }) => note)).toEqual(['unhealthy', 'another']);
  });

  test('is dropped if its subject is evicted while it is delayed', async () => {
    const events = start({ maxWaiting: 1 });
    await reportAndWait(events, report());
    await reportAndWait(events, report({ note: 'no server' }));
    const before = events.dropped;
    for (let i = 0; i < 4_096; i++) events.report(report({ regarding: { ...claim, uid: `other-${i}` } }));
    // All were dropped except the last one, which waits; and so was the delayed one.
    expect(events.dropped - before).toBe(4_095 + 1);
    await expect.poll(() => events.waiting).toBe(0);
    clock.advance(300_000);
    await reportOther(events);
    expect((await listEvents()).map(({ note }) => note)).not.toContain('no server');
  });

  test('is not lost when many are due at once', async () => {
    const events = start({ maxWaiting: 1 });
    const uids = ['u1', 'u2', 'u3'];
    const reportAbout = (uid: string, note: string): Report => report({ regarding: { ...claim, uid }, note });
    for (const uid of uids) await reportAndWait(events, reportAbout(uid, 'no room'));
    for (const uid of uids) await reportAndWait(events, reportAbout(uid, 'no server'));
    clock.advance(300_000);
    await expect.poll(writeCount).toBe(6);
    expect(events.dropped).toBe(0);
  });
});

describe('the queue of Events', () => {
  test('is bounded: the oldest Event is dropped', async () => {
    const events = createEvents({ client, clock, controller: 'c', instance: 'i', maxWaiting: 3 });
    for (let i = 0; i < 5; i++) events.report(report({ reason: `R${i}` }));
    expect([events.waiting, events.dropped]).toEqual([3, 2]);
    ended = events.run({ signal: abort.signal, log: silentLog() });
    await expect.poll(writeCount).toBe(3);
    expect((await listEvents()).map(({ reason }) => reason)).toEqual(['R2', 'R3', 'R4']);
  });

  test('writes one Event at a time', async () => {
    let openRequests = 0;
    let maxOpen = 0;
    api.intercept = (request, response) => {
      if (request.method === 'POST') {
        openRequests++;
        maxOpen = Math.max(maxOpen, openRequests);
        response.on('finish', () => {
          openRequests--;
        });
      }
      return false;
    };
    const events = start();
    for (let i = 0; i < 50; i++) events.report(report({ reason: `R${i}` }));
    await expect.poll(writeCount).toBe(50);
    expect(maxOpen).toBe(1);
  });

  test('writes a burst of normal Events, then limits their rate', async () => {
    const events = start();
    for (let i = 0; i < 20; i++) events.report(report({ type: 'Normal', reason: `R${i}` }));
    await expect.poll(writeCount).toBe(10);
    await expect.poll(() => events.waiting).toBe(10);
    clock.advance(100);
    await expect.poll(() => events.waiting).toBe(9);
    expect(writeCount()).toBe(11);
    clock.advance(900);
    await expect.poll(() => events.waiting).toBe(0);
    expect(writeCount()).toBe(20);
  });

  test('writes warnings first, without a rate limit', async () => {
    const events = start();
    for (let i = 0; i < 30; i++) events.report(report({ type: 'Normal', reason: `R${i}` }));
    await expect.poll(writeCount).toBe(10);
    for (let i = 0; i < 3; i++) events.report(report({ reason: `Wrong${i}` }));
    await expect.poll(writeCount).toBe(13);
    const reasons = (await listEvents()).map(({ reason }) => reason);
    expect(reasons).toEqual(expect.arrayContaining(['Wrong0', 'Wrong1', 'Wrong2']));
    expect(reasons).not.toContain('R10');
  });

  test('survives an API server that is away for half a minute', async () => {
    await api.down();
    const events = start();
    events.report(report());
    while (clock.elapsed() < 30_000) {
      const { length } = clock.slept;
      await expect.poll(() => clock.sleeping.length).toBe(1);
      clock.advance(clock.sleeping[0] ?? 0);
      await expect.poll(() => clock.slept.length).toBe(Math.max(length, 1) + 1);
    }
    await api.up();
    clock.advance(30_000);
    await expect.poll(writeCount).toBe(1);
    expect(events.dropped).toBe(0);
  });

  test('waits for the time that the API server requests', async () => {
    let isFirst = true;
    api.intercept = (_request, response) => {
      if (!isFirst) return false;
      isFirst = false;
      api.refuse(response, 429, 'TooManyRequests', { headers: { 'retry-after': '44' } });
      return true;
    };
    start().report(report());
    await expect.poll(() => clock.slept).toEqual([44_000]);
    clock.advance(44_000);
    await expect.poll(async () => (await listEvents()).length).toBe(1);
  });

  test('drops an Event that the API server refuses, and writes the next one', async () => {
    api.intercept = (request, response, body) => {
      if (request.method !== 'POST' || !body.includes('"R0"')) return false;
      api.refuse(response, 403, 'Forbidden', { details: { causes: [{ reason: 'NamespaceTerminating' }] } });
      return true;
    };
    const events = start();
    events.report(report({ reason: 'R0' }));
    events.report(report({ reason: 'R1' }));
    await expect.poll(async () => (await listEvents()).map(({ reason }) => reason)).toEqual(['R1']);
    expect(events.dropped).toBe(1);
  });
});

describe('a note', () => {
  test.each([
    ['x'.repeat(1_024), 'x'.repeat(1_024)],
    ['x'.repeat(1_025), `${'x'.repeat(1_021)}…`],
    ['é'.repeat(600), `${'é'.repeat(510)}…`],
    [`x${'😀'.repeat(300)}`, `x${'😀'.repeat(255)}…`],
  ])('is truncated to the limit of the API server', async (note, expectedNote) => {
    start().report(report({ note }));
    await expect.poll(writeCount).toBe(1);
    const [event] = await listEvents();
    expect(event?.note).toBe(expectedNote);
    expect(Buffer.byteLength(expectedNote)).toBeLessThanOrEqual(1_024);
  });

  const adminHint = 'with: stowage store check';
  test('about an error contains what failed and what to do', () => {
    const error = new StowageError('the size is not valid', {
      code: 'invalid',
      reason: 'size-invalid',
      action: 'Give a size',
    });
    expect(errorNote(error, adminHint)).toBe('the size is not valid. Give a size.');
  });

  test('does not contain the address of a store, nor the text of the API server', () => {
    const storeError = new StowageError('mount of 10.1.2.3:/secret failed', {
      code: 'unavailable',
      reason: 'nfs-refused',
      action: 'nc -vz 10.1.2.3 2049',
    });
    const apiError = new KubeError('POST /x: secret', { failure: 'refused', status: 403, reason: 'Forbidden' });
    for (const error of [storeError, apiError, new Error('secret 10.1.2.3')]) {
      expect(errorNote(error, adminHint)).not.toMatch(/10\.1\.2\.3|secret/);
      expect(errorNote(error, adminHint)).toContain('stowage store check');
    }
  });
});
