import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Scope, silentLog } from '#base/log.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createWaitedClock, type WaitedClock } from '#testing/kube-clock.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { leases } from '#wire/kube/resources.ts';
import type { Lease } from '#wire/kube/types.ts';
import { createLeader, type Leader, LeadershipLost } from './leader.ts';
import type { LeaseNote } from './lease-note.ts';

const path = '/apis/coordination.k8s.io/v1/namespaces/stowage/leases';
let api: FakeKubeApi;
let candidates: Candidate[];

/** One process, with a clock of its own. */
interface Candidate extends AsyncDisposable {
  readonly leader: Leader;
  readonly clock: WaitedClock;
  readonly stop: AbortController;
  readonly abort: AbortController;
  /** Whether its work is running. */
  readonly isWorking: boolean;
  readonly warnings: readonly string[];
  readonly ended: Promise<unknown>;
}

beforeEach(async () => {
  api = await startKubeApi();
  candidates = [];
});
afterEach(async () => {
  for (const one of candidates) await one[Symbol.asyncDispose]();
  await api[Symbol.asyncDispose]();
});

function startCandidate(identity: string, work?: (scope: Scope) => Promise<void>, note?: LeaseNote): Candidate {
  const clock = createWaitedClock();
  const client = createKubeClient({ access: api.access, clock, userAgent: identity });
  const [stop, abort] = [new AbortController(), new AbortController()];
  const options = { client, clock, namespace: 'stowage', name: 'controller', identity, random: () => 0.5 };
  const leader = createLeader(note === undefined ? options : { ...options, note });
  let isWorking = false;
  const warnings: string[] = [];
  const untilStopped = ({ signal }: Scope): Promise<void> =>
    new Promise((resolve) => {
      for (const one of [signal, stop.signal]) one.addEventListener('abort', () => resolve(), { once: true });
    });
  const ended = leader
    .run(
      async (scope) => {
        isWorking = true;
        await (work ?? untilStopped)(scope).finally(() => {
          isWorking = false;
        });
      },
      { signal: abort.signal, log: { ...silentLog(), warn: (message) => void warnings.push(message) } },
      stop.signal,
    )
    .catch((error: unknown) => error);
  const one: Candidate = {
    leader,
    clock,
    stop,
    abort,
    ended,
    warnings,
    get isWorking() {
      return isWorking;
    },
    [Symbol.asyncDispose]: async () => {
      abort.abort();
      await ended;
      client[Symbol.dispose]();
    },
  };
  candidates.push(one);
  return one;
}

async function readLease(): Promise<Lease> {
  using client = createKubeClient({ access: api.access, clock: createWaitedClock(), userAgent: 'test' });
  return await client.get(leases, { namespace: 'stowage', name: 'controller' }, new AbortController().signal);
}
const writeCount = (): number => api.requests.filter((one) => one.startsWith('PUT')).length;
/** Waits until the candidate sleeps before its next renewal or its next read of the Lease. */
const waitUntilAsleep = (one: Candidate): Promise<void> =>
  expect.poll(() => one.clock.sleeping.length, { interval: 5 }).toBe(1);
const waitUntilLeading = (one: Candidate): Promise<void> =>
  expect.poll(() => one.isWorking, { interval: 5 }).toBe(true);

/** Advances the candidate by two seconds, and waits until it sleeps again. */
async function advanceTwoSeconds(one: Candidate): Promise<void> {
  await waitUntilAsleep(one);
  const { length } = one.clock.slept;
  one.clock.advance(2_000);
  await expect.poll(() => one.clock.slept.length, { interval: 5 }).toBeGreaterThan(length);
}

/** Makes the API server ignore all clients but the test. */
function ignoreRequests(matches: (line: string) => boolean = () => true): void {
  api.intercept = (request) =>
    request.headers['user-agent'] !== 'test' &&
    matches(`${request.method ?? ''} ${request.headers['user-agent'] ?? ''}`);
}

describe('several candidates', () => {
  test('elect one leader, which renews every two seconds', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    const b = startCandidate('b');
    for (let i = 0; i < 20; i++) {
      await advanceTwoSeconds(a);
      await advanceTwoSeconds(b);
    }
    expect([a.isWorking, b.isWorking]).toEqual([true, false]);
    expect([a.leader.isLeading, b.leader.isLeading, b.leader.holder]).toEqual([true, false, 'a']);
    expect(writeCount()).toBe(20);
    expect((await readLease()).spec).toEqual({
      holderIdentity: 'a',
      leaseDurationSeconds: 15,
      leaseTransitions: 0,
      acquireTime: '2026-01-01T00:00:00.000000Z',
      renewTime: '2026-01-01T00:00:40.000000Z',
    });
  });

  test('that start at the same moment elect one leader', async () => {
    const all = ['a', 'b', 'c', 'd'].map((identity) => startCandidate(identity));
    await expect.poll(() => all.filter((one) => one.isWorking).length).toBe(1);
    for (const one of all) await advanceTwoSeconds(one);
    expect(all.filter((one) => one.isWorking).length).toBe(1);
  });

  test('that see a Lease expire at the same moment elect one leader', async () => {
    api.put(path, { metadata: { name: 'controller' }, spec: { holderIdentity: 'gone', leaseDurationSeconds: 15 } });
    const all = ['a', 'b', 'c', 'd'].map((identity) => startCandidate(identity));
    for (const one of all) await waitUntilAsleep(one);
    for (const one of all) one.clock.advance(15_000);
    await expect.poll(() => all.filter((one) => one.isWorking).length).toBe(1);
    for (const one of all) await waitUntilAsleep(one);
    expect(all.filter((one) => one.isWorking).length).toBe(1);
    expect((await readLease()).spec?.leaseTransitions).toBe(1);
  });
});

describe('a leader that stops renewing', () => {
  test('is replaced when no process has seen a renewal for the duration of its Lease, regardless of the clocks', async () => {
    // Its clock is years ahead, or far behind.
    for (const renewTime of ['2036-01-01T00:00:00.000000Z', '2016-01-01T00:00:00.000000Z']) {
      api.put(path, {
        metadata: { name: 'controller' },
        spec: { holderIdentity: 'gone', leaseDurationSeconds: 15, renewTime },
      });
      const a = startCandidate(`a-${renewTime}`);
      await waitUntilAsleep(a);
      a.clock.advance(14_999);
      await waitUntilAsleep(a);
      expect(a.isWorking).toBe(false);
      a.clock.advance(2_000);
      await waitUntilLeading(a);
      await a[Symbol.asyncDispose]();
    }
  });

  test('but renews again in time is not replaced', async () => {
    const spec = { holderIdentity: 'other', leaseDurationSeconds: 15 };
    api.put(path, { metadata: { name: 'controller' }, spec: { ...spec, renewTime: '1' } });
    const a = startCandidate('a');
    await waitUntilAsleep(a);
    a.clock.advance(14_000);
    api.put(path, { metadata: { name: 'controller' }, spec: { ...spec, renewTime: '2' } });
    await advanceTwoSeconds(a);
    a.clock.advance(10_000);
    await advanceTwoSeconds(a);
    expect(a.isWorking).toBe(false);
  });

  test('is not replaced before the duration in its own Lease', async () => {
    api.put(path, { metadata: { name: 'controller' }, spec: { holderIdentity: 'x', leaseDurationSeconds: 60 } });
    const a = startCandidate('a');
    await waitUntilAsleep(a);
    a.clock.advance(40_000);
    await advanceTwoSeconds(a);
    expect(a.isWorking).toBe(false);
    a.clock.advance(20_000);
    await waitUntilLeading(a);
  });
});

describe('a leader that cannot renew', () => {
  test('stops its work ten seconds after its last renewal, before another leader starts', async () => {
    const [a, b] = [startCandidate('a'), startCandidate('b')];
    await expect.poll(() => a.isWorking || b.isWorking).toBe(true);
    const [leader, follower] = a.isWorking ? [a, b] : [b, a];
    await waitUntilAsleep(leader);
    ignoreRequests((line) => line === `PUT ${leader === a ? 'a' : 'b'}`);
    const writesBefore = writeCount();
    leader.clock.advance(2_000);
    await expect.poll(writeCount).toBe(writesBefore + 1);
    follower.clock.advance(2_000);
    leader.clock.advance(5_000);
    await waitUntilAsleep(leader);
    expect(leader.isWorking).toBe(true);
    leader.clock.advance(1_500);
    await expect.poll(writeCount).toBe(writesBefore + 2);
    expect(leader.isWorking).toBe(true);
    leader.clock.advance(1_499);
    expect(leader.leader.isLeading).toBe(true);
    leader.clock.advance(1);
    expect(await leader.ended).toBeInstanceOf(LeadershipLost);
    expect(leader.isWorking).toBe(false);
    expect(follower.isWorking).toBe(false);
    await waitUntilAsleep(follower);
    follower.clock.advance(11_000);
    await waitUntilAsleep(follower);
    expect(follower.isWorking).toBe(false);
    follower.clock.advance(4_000);
    await waitUntilLeading(follower);
  });

  test('counts from the start of a renewal, not from its answer', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    await waitUntilAsleep(a);
    const { promise: captured, resolve: capture } = Promise.withResolvers<() => void>();
    api.intercept = (request, response, body) => {
      if (request.method !== 'PUT') return false;
      capture(() => response.end(JSON.stringify(api.put(path, JSON.parse(body)))));
      return true;
    };
    a.clock.advance(2_000);
    const answer = await captured;
    a.clock.advance(3_000);
    answer();
    await waitUntilAsleep(a);
    await api.down();
    while (a.leader.isLeading) {
      const { length } = a.clock.slept;
      a.clock.advance(a.clock.sleeping[0] ?? 0);
      await expect.poll(() => a.clock.slept.length > length || !a.leader.isLeading, { interval: 5 }).toBe(true);
    }
    expect(a.clock.elapsed()).toBe(12_000);
    expect(await a.ended).toBeInstanceOf(LeadershipLost);
  });

  test('continues when the API server comes back in time', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    await waitUntilAsleep(a);
    await api.down();
    for (let i = 0; i < 4; i++) await advanceTwoSeconds(a);
    expect(a.isWorking).toBe(true);
    await api.up();
    await waitUntilAsleep(a);
    expect(a.clock.sleeping).toEqual([1_000]);
    a.clock.advance(1_000);
    await expect.poll(() => a.clock.sleeping).toEqual([2_000]);
    for (let i = 0; i < 10; i++) await advanceTwoSeconds(a);
    expect(a.isWorking).toBe(true);
  });

  test('throws three seconds later even if its work does not end', async () => {
    const a = startCandidate('a', () => new Promise(() => undefined));
    await waitUntilLeading(a);
    await api.down();
    for (let i = 0; i < 4; i++) await advanceTwoSeconds(a);
    await waitUntilAsleep(a);
    a.clock.advance(2_000);
    await expect.poll(() => a.leader.isLeading).toBe(false);
    let isOver = false;
    const ending = a.ended.then((error) => {
      isOver = true;
      return error;
    });
    a.clock.advance(2_999);
    await new Promise((resolve) => setImmediate(resolve));
    expect(isOver).toBe(false);
    a.clock.advance(1);
    expect(await ending).toBeInstanceOf(LeadershipLost);
  });
});

describe('a conflict', () => {
  test('with a change of a label is ignored', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    await waitUntilAsleep(a);
    const { metadata, spec } = await readLease();
    api.put(path, { metadata: { ...metadata, labels: { team: 'storage' } }, spec });
    await advanceTwoSeconds(a);
    await advanceTwoSeconds(a);
    expect(a.isWorking).toBe(true);
    expect((await readLease()).metadata.labels).toEqual({ team: 'storage' });
  });

  test('with a change of a label does not delay the renewal, and logs no warning', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    for (let i = 0; i < 3; i++) {
      await waitUntilAsleep(a);
      const { metadata, spec } = await readLease();
      api.put(path, { metadata: { ...metadata, labels: { turn: `${i}` } }, spec });
      await advanceTwoSeconds(a);
      await waitUntilAsleep(a);
      expect((await readLease()).spec?.renewTime).toBe(`2026-01-01T00:00:0${2 * (i + 1)}.000000Z`);
      expect(a.clock.sleeping).toEqual([2_000]);
    }
    expect(a.warnings).toEqual([]);
  });

  test('that repeats logs a warning, and is not retried without a pause', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    await waitUntilAsleep(a);
    api.intercept = (request, response) => {
      if (request.method !== 'PUT') return false;
      api.refuse(response, 409, 'Conflict');
      return true;
    };
    const writesBefore = writeCount();
    await advanceTwoSeconds(a);
    await waitUntilAsleep(a);
    expect(writeCount()).toBe(writesBefore + 2);
    expect(a.warnings).toEqual(['the Lease was not renewed']);
    api.intercept = undefined;
    await advanceTwoSeconds(a);
    await waitUntilAsleep(a);
    expect(a.isWorking).toBe(true);
  });

  test('with its own update, whose answer was lost, is ignored', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    await waitUntilAsleep(a);
    let isFirst = true;
    api.intercept = (request, response, body) => {
      if (request.method !== 'PUT' || !isFirst) return false;
      isFirst = false;
      api.put(path, JSON.parse(body));
      response.socket?.destroy();
      return true;
    };
    await advanceTwoSeconds(a);
    await advanceTwoSeconds(a);
    await advanceTwoSeconds(a);
    expect(a.isWorking).toBe(true);
  });

  test('with another leader stops the work at once', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    await waitUntilAsleep(a);
    api.put(path, { metadata: { name: 'controller' }, spec: { holderIdentity: 'b', leaseDurationSeconds: 15 } });
    a.clock.advance(2_000);
    expect(await a.ended).toMatchObject({ name: 'LeadershipLost', message: '“b” holds the Lease' });
    expect(a.isWorking).toBe(false);
    expect((await readLease()).spec?.holderIdentity).toBe('b');
  });

  test('with a deletion of the Lease stops the work at once', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    await waitUntilAsleep(a);
    api.remove(path, 'controller');
    a.clock.advance(2_000);
    expect(await a.ended).toMatchObject({ name: 'LeadershipLost', message: 'the Lease is gone' });
  });
});

describe('the end of a process', () => {
  test('releases the Lease when the work has ended, and the next candidate leads with its next attempt', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    const b = startCandidate('b');
    await waitUntilAsleep(b);
    a.stop.abort();
    expect(await a.ended).toBe(undefined);
    expect((await readLease()).spec?.holderIdentity).toBe('');
    b.clock.advance(2_000);
    await waitUntilLeading(b);
    expect((await readLease()).spec).toMatchObject({ holderIdentity: 'b', leaseTransitions: 1 });
  });

  test('does not release the Lease while the work continues', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const a = startCandidate('a', () => promise);
    await waitUntilLeading(a);
    a.stop.abort();
    await advanceTwoSeconds(a);
    await advanceTwoSeconds(a);
    expect((await readLease()).spec?.holderIdentity).toBe('a');
    resolve();
    await a.ended;
    expect((await readLease()).spec?.holderIdentity).toBe('');
  });

  test('of a candidate does not change the Lease', async () => {
    const a = startCandidate('a');
    await waitUntilLeading(a);
    const b = startCandidate('b');
    await waitUntilAsleep(b);
    b.stop.abort();
    expect(await b.ended).toBe(undefined);
    expect((await readLease()).spec?.holderIdentity).toBe('a');
  });

  test('of a candidate that acquired the Lease, but did not get the answer, releases it', async () => {
    api.intercept = (request, _response, body) => {
      if (request.method !== 'POST') return false;
      api.put(path, JSON.parse(body));
      a.stop.abort();
      return true;
    };
    const a = startCandidate('a');
    expect(await a.ended).toBe(undefined);
    expect((await readLease()).spec?.holderIdentity).toBe('');
    expect(a.isWorking).toBe(false);
  });

  test('with an error of the work throws it, and releases the Lease', async () => {
    const a = startCandidate('a', () => Promise.reject(new Error('a fault')));
    expect(await a.ended).toMatchObject({ message: 'a fault' });
    expect((await readLease()).spec?.holderIdentity).toBe('');
  });
});

describe('a note on the Lease', () => {
  const annotation = 'stowage.dev/test';
  const readNote = async (): Promise<string | undefined> => (await readLease()).metadata.annotations?.[annotation];
  /** Appends a word to the note. */
  const noteAppending = (word: string, waiting?: string): LeaseNote => ({
    annotation,
    whileWaiting: async (text) =>
      waiting === undefined || text?.includes(waiting) === true ? undefined : `${text ?? ''} ${waiting}`.trim(),
    whenAcquiring: async (text) => `${text ?? ''} ${word}`.trim(),
  });

  test('is written by the call that creates or acquires the Lease', async () => {
    const bodies: Lease[] = [];
    api.intercept = ({ method }, _response, body) => {
      if (method === 'POST' || method === 'PUT') bodies.push(JSON.parse(body) as Lease);
      return false;
    };
    const a = startCandidate('a', undefined, noteAppending('a'));
    await waitUntilLeading(a);
    a.stop.abort();
    await a.ended;
    const b = startCandidate('b', undefined, noteAppending('b'));
    await waitUntilLeading(b);
    const first = (holder: string): Lease | undefined => bodies.find(({ spec }) => spec?.holderIdentity === holder);
    expect(first('a')?.metadata.annotations).toEqual({ [annotation]: 'a' });
    expect(first('b')?.metadata.annotations).toEqual({ [annotation]: 'a b' });
    // Later calls do not change it.
    await advanceTwoSeconds(b);
    await advanceTwoSeconds(b);
    expect(await readNote()).toBe('a b');
  });

  test('that fails prevents its process from leading', async () => {
    let isBroken = true;
    const whenAcquiring = async (): Promise<string> => (isBroken ? Promise.reject(new Error('a fault')) : 'a');
    const a = startCandidate('a', undefined, { ...noteAppending('a'), whenAcquiring });
    await waitUntilAsleep(a);
    expect([a.isWorking, writeCount(), a.warnings]).toEqual([false, 0, ['cannot read or acquire the Lease']]);
    isBroken = false;
    await advanceTwoSeconds(a);
    await waitUntilLeading(a);
    expect(await readNote()).toBe('a');
  });

  test('is computed from the current text when the Lease is acquired, also if another process was faster', async () => {
    api.put(path, { metadata: { name: 'controller', annotations: { [annotation]: 'x' } }, spec: {} });
    let isFirst = true;
    api.intercept = ({ method }) => {
      if (method !== 'PUT' || !isFirst) return false;
      isFirst = false;
      api.put(path, { metadata: { name: 'controller', annotations: { [annotation]: 'x y' } }, spec: {} });
      return false;
    };
    const a = startCandidate('a', undefined, noteAppending('a'));
    await advanceTwoSeconds(a);
    await waitUntilLeading(a);
    expect(await readNote()).toBe('x y a');
  });

  test('of a candidate is written without a change of the leader, and does not extend the Lease', async () => {
    const spec = { holderIdentity: 'gone', leaseDurationSeconds: 15, renewTime: '1' };
    api.put(path, { metadata: { name: 'controller', labels: { team: 'storage' } }, spec });
    const a = startCandidate('a', undefined, noteAppending('a', 'waits'));
    await waitUntilAsleep(a);
    expect(await readLease()).toMatchObject({
      metadata: { labels: { team: 'storage' }, annotations: { [annotation]: 'waits' } },
      spec,
    });
    a.clock.advance(14_999);
    await waitUntilAsleep(a);
    expect([a.isWorking, writeCount()]).toEqual([false, 1]);
    a.clock.advance(2_000);
    await waitUntilLeading(a);
    expect(await readNote()).toBe('waits a');
  });
});
