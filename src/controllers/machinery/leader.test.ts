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
  readonly end: AbortController;
  /** Whether its work is running. */
  readonly isWorking: boolean;
  readonly warnings: readonly string[];
  readonly over: Promise<unknown>;
}

beforeEach(async () => {
  api = await startKubeApi();
  candidates = [];
});
afterEach(async () => {
  for (const one of candidates) await one[Symbol.asyncDispose]();
  await api[Symbol.asyncDispose]();
});

function candidate(identity: string, work?: (scope: Scope) => Promise<void>, note?: LeaseNote): Candidate {
  const clock = createWaitedClock();
  const client = createKubeClient({ access: api.access, clock, userAgent: identity });
  const [stop, end] = [new AbortController(), new AbortController()];
  const options = { client, clock, namespace: 'stowage', name: 'controller', identity, random: () => 0.5 };
  const leader = createLeader(note === undefined ? options : { ...options, note });
  let isWorking = false;
  const warnings: string[] = [];
  const untilStopped = ({ signal }: Scope): Promise<void> =>
    new Promise((resolve) => {
      for (const one of [signal, stop.signal]) one.addEventListener('abort', () => resolve(), { once: true });
    });
  const over = leader
    .run(
      async (scope) => {
        isWorking = true;
        await (work ?? untilStopped)(scope).finally(() => {
          isWorking = false;
        });
      },
      { signal: end.signal, log: { ...silentLog(), warn: (message) => void warnings.push(message) } },
      stop.signal,
    )
    .catch((error: unknown) => error);
  const one: Candidate = {
    leader,
    clock,
    stop,
    end,
    over,
    warnings,
    get isWorking() {
      return isWorking;
    },
    [Symbol.asyncDispose]: async () => {
      end.abort();
      await over;
      client[Symbol.dispose]();
    },
  };
  candidates.push(one);
  return one;
}

async function lease(): Promise<Lease> {
  using client = createKubeClient({ access: api.access, clock: createWaitedClock(), userAgent: 'test' });
  return await client.get(leases, { namespace: 'stowage', name: 'controller' }, new AbortController().signal);
}
const writes = (): number => api.requests.filter((one) => one.startsWith('PUT')).length;
/** Waits until the candidate sleeps before its next renewal or its next read of the Lease. */
const asleep = (one: Candidate): Promise<void> => expect.poll(() => one.clock.sleeping.length, { interval: 5 }).toBe(1);
const leads = (one: Candidate): Promise<void> => expect.poll(() => one.isWorking, { interval: 5 }).toBe(true);

/** Advances the candidate by two seconds, and waits until it sleeps again. */
async function tick(one: Candidate): Promise<void> {
  await asleep(one);
  const { length } = one.clock.slept;
  one.clock.advance(2_000);
  await expect.poll(() => one.clock.slept.length, { interval: 5 }).toBeGreaterThan(length);
}

/** Makes the API server ignore all clients but the test. */
function silence(which: (line: string) => boolean = () => true): void {
  api.intercept = (request) =>
    request.headers['user-agent'] !== 'test' && which(`${request.method ?? ''} ${request.headers['user-agent'] ?? ''}`);
}

describe('of several candidates', () => {
  test('one becomes the leader, and renews every two seconds', async () => {
    const a = candidate('a');
    await leads(a);
    const b = candidate('b');
    for (let i = 0; i < 20; i++) {
      await tick(a);
      await tick(b);
    }
    expect([a.isWorking, b.isWorking]).toEqual([true, false]);
    expect([a.leader.isLeading, b.leader.isLeading, b.leader.holder]).toEqual([true, false, 'a']);
    expect(writes()).toBe(20);
    expect((await lease()).spec).toEqual({
      holderIdentity: 'a',
      leaseDurationSeconds: 15,
      leaseTransitions: 0,
      acquireTime: '2026-01-01T00:00:00.000000Z',
      renewTime: '2026-01-01T00:00:40.000000Z',
    });
  });

  test('that start at the same moment one becomes the leader', async () => {
    const all = ['a', 'b', 'c', 'd'].map((identity) => candidate(identity));
    await expect.poll(() => all.filter((one) => one.isWorking).length).toBe(1);
    for (const one of all) await tick(one);
    expect(all.filter((one) => one.isWorking).length).toBe(1);
  });

  test('that see a Lease expire at the same moment one becomes the leader', async () => {
    api.put(path, { metadata: { name: 'controller' }, spec: { holderIdentity: 'gone', leaseDurationSeconds: 15 } });
    const all = ['a', 'b', 'c', 'd'].map((identity) => candidate(identity));
    for (const one of all) await asleep(one);
    for (const one of all) one.clock.advance(15_000);
    await expect.poll(() => all.filter((one) => one.isWorking).length).toBe(1);
    for (const one of all) await asleep(one);
    expect(all.filter((one) => one.isWorking).length).toBe(1);
    expect((await lease()).spec?.leaseTransitions).toBe(1);
  });
});

describe('a leader that stops renewing', () => {
  test('is replaced after no process saw a renewal for the duration of its Lease, whatever the clocks say', async () => {
    // Its clock is years ahead, or far behind.
    for (const renewTime of ['2036-01-01T00:00:00.000000Z', '2016-01-01T00:00:00.000000Z']) {
      api.put(path, {
        metadata: { name: 'controller' },
        spec: { holderIdentity: 'gone', leaseDurationSeconds: 15, renewTime },
      });
      const a = candidate(`a-${renewTime}`);
      await asleep(a);
      a.clock.advance(14_999);
      await asleep(a);
      expect(a.isWorking).toBe(false);
      a.clock.advance(2_000);
      await leads(a);
      await a[Symbol.asyncDispose]();
    }
  });

  test('and renews in between is not replaced', async () => {
    const spec = { holderIdentity: 'other', leaseDurationSeconds: 15 };
    api.put(path, { metadata: { name: 'controller' }, spec: { ...spec, renewTime: '1' } });
    const a = candidate('a');
    await asleep(a);
    a.clock.advance(14_000);
    api.put(path, { metadata: { name: 'controller' }, spec: { ...spec, renewTime: '2' } });
    await tick(a);
    a.clock.advance(10_000);
    await tick(a);
    expect(a.isWorking).toBe(false);
  });

  test('is not replaced before the duration in its own Lease', async () => {
    api.put(path, { metadata: { name: 'controller' }, spec: { holderIdentity: 'x', leaseDurationSeconds: 60 } });
    const a = candidate('a');
    await asleep(a);
    a.clock.advance(40_000);
    await tick(a);
    expect(a.isWorking).toBe(false);
    a.clock.advance(20_000);
    await leads(a);
  });
});

describe('a leader that cannot renew', () => {
  test('stops its work ten seconds after its last renewal, before another leader starts', async () => {
    const [a, b] = [candidate('a'), candidate('b')];
    await expect.poll(() => a.isWorking || b.isWorking).toBe(true);
    const [one, other] = a.isWorking ? [a, b] : [b, a];
    await asleep(one);
    silence((line) => line === `PUT ${one === a ? 'a' : 'b'}`);
    const asked = writes();
    one.clock.advance(2_000);
    await expect.poll(writes).toBe(asked + 1);
    other.clock.advance(2_000);
    one.clock.advance(5_000);
    await asleep(one);
    expect(one.isWorking).toBe(true);
    one.clock.advance(1_500);
    await expect.poll(writes).toBe(asked + 2);
    expect(one.isWorking).toBe(true);
    one.clock.advance(1_499);
    expect(one.leader.isLeading).toBe(true);
    one.clock.advance(1);
    expect(await one.over).toBeInstanceOf(LeadershipLost);
    expect(one.isWorking).toBe(false);
    expect(other.isWorking).toBe(false);
    await asleep(other);
    other.clock.advance(11_000);
    await asleep(other);
    expect(other.isWorking).toBe(false);
    other.clock.advance(4_000);
    await leads(other);
  });

  test('counts from the start of a renewal, not from its answer', async () => {
    const a = candidate('a');
    await leads(a);
    await asleep(a);
    const { promise: held, resolve: hold } = Promise.withResolvers<() => void>();
    api.intercept = (request, response, body) => {
      if (request.method !== 'PUT') return false;
      hold(() => response.end(JSON.stringify(api.put(path, JSON.parse(body)))));
      return true;
    };
    a.clock.advance(2_000);
    const answer = await held;
    a.clock.advance(3_000);
    answer();
    await asleep(a);
    await api.down();
    while (a.leader.isLeading) {
      const { length } = a.clock.slept;
      a.clock.advance(a.clock.sleeping[0] ?? 0);
      await expect.poll(() => a.clock.slept.length > length || !a.leader.isLeading, { interval: 5 }).toBe(true);
    }
    expect(a.clock.elapsed()).toBe(12_000);
    expect(await a.over).toBeInstanceOf(LeadershipLost);
  });

  test('continues when the API server comes back in time', async () => {
    const a = candidate('a');
    await leads(a);
    await asleep(a);
    await api.down();
    for (let i = 0; i < 4; i++) await tick(a);
    expect(a.isWorking).toBe(true);
    await api.up();
    await asleep(a);
    expect(a.clock.sleeping).toEqual([1_000]);
    a.clock.advance(1_000);
    await expect.poll(() => a.clock.sleeping).toEqual([2_000]);
    for (let i = 0; i < 10; i++) await tick(a);
    expect(a.isWorking).toBe(true);
  });

  test('gives up some seconds later even if its work does not end', async () => {
    const a = candidate('a', () => new Promise(() => undefined));
    await leads(a);
    await api.down();
    for (let i = 0; i < 4; i++) await tick(a);
    await asleep(a);
    a.clock.advance(2_000);
    await expect.poll(() => a.leader.isLeading).toBe(false);
    let isOver = false;
    const over = a.over.then((error) => {
      isOver = true;
      return error;
    });
    a.clock.advance(2_999);
    await new Promise((resolve) => setImmediate(resolve));
    expect(isOver).toBe(false);
    a.clock.advance(1);
    expect(await over).toBeInstanceOf(LeadershipLost);
  });
});

describe('a conflict', () => {
  test('with a change of something else is ignored', async () => {
    const a = candidate('a');
    await leads(a);
    await asleep(a);
    const { metadata, spec } = await lease();
    api.put(path, { metadata: { ...metadata, labels: { team: 'storage' } }, spec });
    await tick(a);
    await tick(a);
    expect(a.isWorking).toBe(true);
    expect((await lease()).metadata.labels).toEqual({ team: 'storage' });
  });

  test('with a change of something else costs no time, and logs no warning', async () => {
    const a = candidate('a');
    await leads(a);
    for (let i = 0; i < 3; i++) {
      await asleep(a);
      const { metadata, spec } = await lease();
      api.put(path, { metadata: { ...metadata, labels: { turn: `${i}` } }, spec });
      await tick(a);
      await asleep(a);
      expect((await lease()).spec?.renewTime).toBe(`2026-01-01T00:00:0${2 * (i + 1)}.000000Z`);
      expect(a.clock.sleeping).toEqual([2_000]);
    }
    expect(a.warnings).toEqual([]);
  });

  test('that repeats logs a warning, and is not retried without a pause', async () => {
    const a = candidate('a');
    await leads(a);
    await asleep(a);
    api.intercept = (request, response) => {
      if (request.method !== 'PUT') return false;
      api.refuse(response, 409, 'Conflict');
      return true;
    };
    const asked = writes();
    await tick(a);
    await asleep(a);
    expect(writes()).toBe(asked + 2);
    expect(a.warnings).toEqual(['the Lease was not renewed']);
    api.intercept = undefined;
    await tick(a);
    await asleep(a);
    expect(a.isWorking).toBe(true);
  });

  test('with its own update, whose answer was lost, is ignored', async () => {
    const a = candidate('a');
    await leads(a);
    await asleep(a);
    let isFirst = true;
    api.intercept = (request, response, body) => {
      if (request.method !== 'PUT' || !isFirst) return false;
      isFirst = false;
      api.put(path, JSON.parse(body));
      response.socket?.destroy();
      return true;
    };
    await tick(a);
    await tick(a);
    await tick(a);
    expect(a.isWorking).toBe(true);
  });

  test('with another leader stops the work at once', async () => {
    const a = candidate('a');
    await leads(a);
    await asleep(a);
    api.put(path, { metadata: { name: 'controller' }, spec: { holderIdentity: 'b', leaseDurationSeconds: 15 } });
    a.clock.advance(2_000);
    expect(await a.over).toMatchObject({ name: 'LeadershipLost', message: '“b” holds the Lease' });
    expect(a.isWorking).toBe(false);
    expect((await lease()).spec?.holderIdentity).toBe('b');
  });

  test('with a deletion of the Lease stops the work at once', async () => {
    const a = candidate('a');
    await leads(a);
    await asleep(a);
    api.remove(path, 'controller');
    a.clock.advance(2_000);
    expect(await a.over).toMatchObject({ name: 'LeadershipLost', message: 'the Lease is gone' });
  });
});

describe('the end', () => {
  test('releases the Lease when the work has ended, and the next candidate leads with its next attempt', async () => {
    const a = candidate('a');
    await leads(a);
    const b = candidate('b');
    await asleep(b);
    a.stop.abort();
    expect(await a.over).toBe(undefined);
    expect((await lease()).spec?.holderIdentity).toBe('');
    b.clock.advance(2_000);
    await leads(b);
    expect((await lease()).spec).toMatchObject({ holderIdentity: 'b', leaseTransitions: 1 });
  });

  test('does not release the Lease while the work continues', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const a = candidate('a', () => promise);
    await leads(a);
    a.stop.abort();
    await tick(a);
    await tick(a);
    expect((await lease()).spec?.holderIdentity).toBe('a');
    resolve();
    await a.over;
    expect((await lease()).spec?.holderIdentity).toBe('');
  });

  test('of a candidate leaves the Lease alone', async () => {
    const a = candidate('a');
    await leads(a);
    const b = candidate('b');
    await asleep(b);
    b.stop.abort();
    expect(await b.over).toBe(undefined);
    expect((await lease()).spec?.holderIdentity).toBe('a');
  });

  test('of a candidate that acquired the Lease without getting the answer releases it', async () => {
    api.intercept = (request, _response, body) => {
      if (request.method !== 'POST') return false;
      api.put(path, JSON.parse(body));
      a.stop.abort();
      return true;
    };
    const a = candidate('a');
    expect(await a.over).toBe(undefined);
    expect((await lease()).spec?.holderIdentity).toBe('');
    expect(a.isWorking).toBe(false);
  });

  test('with an error of the work throws it, and releases the Lease', async () => {
    const a = candidate('a', () => Promise.reject(new Error('a fault')));
    expect(await a.over).toMatchObject({ message: 'a fault' });
    expect((await lease()).spec?.holderIdentity).toBe('');
  });
});

describe('a note on the Lease', () => {
  const annotation = 'stowage.dev/test';
  const noteOf = async (): Promise<string | undefined> => (await lease()).metadata.annotations?.[annotation];
  /** Appends a word to the note. */
  const adding = (word: string, waiting?: string): LeaseNote => ({
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
    const a = candidate('a', undefined, adding('a'));
    await leads(a);
    a.stop.abort();
    await a.over;
    const b = candidate('b', undefined, adding('b'));
    await leads(b);
    const first = (holder: string): Lease | undefined => bodies.find(({ spec }) => spec?.holderIdentity === holder);
    expect(first('a')?.metadata.annotations).toEqual({ [annotation]: 'a' });
    expect(first('b')?.metadata.annotations).toEqual({ [annotation]: 'a b' });
    // Later calls do not change it.
    await tick(b);
    await tick(b);
    expect(await noteOf()).toBe('a b');
  });

  test('that fails prevents its process from leading', async () => {
    let isBroken = true;
    const whenAcquiring = async (): Promise<string> => (isBroken ? Promise.reject(new Error('a fault')) : 'a');
    const a = candidate('a', undefined, { ...adding('a'), whenAcquiring });
    await asleep(a);
    expect([a.isWorking, writes(), a.warnings]).toEqual([false, 0, ['cannot read or acquire the Lease']]);
    isBroken = false;
    await tick(a);
    await leads(a);
    expect(await noteOf()).toBe('a');
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
    const a = candidate('a', undefined, adding('a'));
    await tick(a);
    await leads(a);
    expect(await noteOf()).toBe('x y a');
  });

  test('of a candidate is written without a change of the leader, and does not extend the Lease', async () => {
    const spec = { holderIdentity: 'gone', leaseDurationSeconds: 15, renewTime: '1' };
    api.put(path, { metadata: { name: 'controller', labels: { team: 'storage' } }, spec });
    const a = candidate('a', undefined, adding('a', 'waits'));
    await asleep(a);
    expect(await lease()).toMatchObject({
      metadata: { labels: { team: 'storage' }, annotations: { [annotation]: 'waits' } },
      spec,
    });
    a.clock.advance(14_999);
    await asleep(a);
    expect([a.isWorking, writes()]).toEqual([false, 1]);
    a.clock.advance(2_000);
    await leads(a);
    expect(await noteOf()).toBe('waits a');
  });
});
