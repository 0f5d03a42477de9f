import { describe, expect, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type LeaderAddress, Refusal } from '../tunnel/leader-connection.ts';
import { createPodCache, type PodCache, type RequestedPod } from './pod-cache.ts';
import type { PodAnswer } from './pod-handler.ts';

const { signal } = new AbortController();
const leaderAt = (host: string): LeaderAddress => ({ host, port: 8443, servername: 's', ca: 'c' });
const pod = (name: string): RequestedPod => ({ namespace: 'team', name, uid: `uid-${name}` });
const answerOf = ({ uid }: RequestedPod): PodAnswer => ({ uid, hostUsers: false });

interface PodCacheFixture {
  readonly clock: ReturnType<typeof createFakeClock>;
  readonly cache: PodCache;
  readonly requestedPods: string[];
  leader: LeaderAddress | undefined;
  answer: (pod: RequestedPod) => Promise<PodAnswer>;
}

function podCacheFixture(): PodCacheFixture {
  const clock = createFakeClock();
  const requestedPods: string[] = [];
  const fixture: PodCacheFixture = {
    clock,
    requestedPods,
    leader: leaderAt('10.0.0.1'),
    answer: async (one) => answerOf(one),
    cache: createPodCache({
      clock,
      log: silentLog(),
      leader: () => fixture.leader,
      ask: async (_, one) => {
        requestedPods.push(one.name);
        return await fixture.answer(one);
      },
    }),
  };
  return fixture;
}

const failing = async (): Promise<never> => {
  throw new Error('no way');
};

describe('an answer about a pod', () => {
  test('is requested once, also by concurrent callers, and stays available without a leader', async () => {
    const fixture = podCacheFixture();
    const concurrentAnswers = await Promise.all([
      fixture.cache.get(pod('a'), signal),
      fixture.cache.get(pod('a'), signal),
    ]);
    fixture.leader = undefined;
    expect([...concurrentAnswers, await fixture.cache.get(pod('a'), signal)]).toEqual(
      [1, 2, 3].map(() => answerOf(pod('a'))),
    );
    expect(fixture.requestedPods).toEqual(['a']);
    expect(await fixture.cache.get(pod('b'), signal)).toBeUndefined();
  });

  test('is evicted when the cache has more than 1000 answers', async () => {
    const fixture = podCacheFixture();
    for (let i = 0; i <= 1_000; i++) await fixture.cache.get(pod(`p${i}`), signal);
    await fixture.cache.get(pod('p1000'), signal);
    expect(fixture.requestedPods).toHaveLength(1_001);
    await fixture.cache.get(pod('p0'), signal);
    expect(fixture.requestedPods).toHaveLength(1_002);
  });

  test('is not used for another pod of the same name', async () => {
    const fixture = podCacheFixture();
    fixture.answer = async () => ({ uid: 'uid-other', hostUsers: false });
    expect(await fixture.cache.get(pod('a'), signal)).toBeUndefined();
    fixture.answer = async (one) => answerOf(one);
    expect(await fixture.cache.get(pod('a'), signal)).toEqual(answerOf(pod('a')));
  });

  test('is returned to the other callers when one of them aborts', async () => {
    const fixture = podCacheFixture();
    const { promise, resolve } = Promise.withResolvers<PodAnswer>();
    fixture.answer = () => promise;
    const caller = new AbortController();
    const first = fixture.cache.get(pod('a'), caller.signal);
    const second = fixture.cache.get(pod('a'), signal);
    caller.abort(new Error('enough'));
    await expect(first).rejects.toThrow('enough');
    resolve(answerOf(pod('a')));
    expect(await second).toEqual(answerOf(pod('a')));
    expect(fixture.requestedPods).toEqual(['a']);
  });
});

describe('a leader that cannot be reached', () => {
  test('gets no requests for 10 s', async () => {
    const fixture = podCacheFixture();
    fixture.answer = failing;
    expect(await fixture.cache.get(pod('a'), signal)).toBeUndefined();
    fixture.clock.advance(9_999);
    expect(await fixture.cache.get(pod('b'), signal)).toBeUndefined();
    expect(fixture.requestedPods).toEqual(['a']);
    fixture.clock.advance(1);
    await fixture.cache.get(pod('c'), signal);
    expect(fixture.requestedPods).toEqual(['a', 'c']);
  });

  test('does not prevent requests to the next leader, or to itself when it is back', async () => {
    const fixture = podCacheFixture();
    fixture.cache.markUnreachable(leaderAt('10.0.0.1'));
    expect(await fixture.cache.get(pod('a'), signal)).toBeUndefined();
    fixture.leader = leaderAt('10.0.0.2');
    expect(await fixture.cache.get(pod('a'), signal)).toEqual(answerOf(pod('a')));
    fixture.leader = leaderAt('10.0.0.1');
    fixture.cache.markReachable();
    expect(await fixture.cache.get(pod('b'), signal)).toEqual(answerOf(pod('b')));
  });
});

test('a leader that rejects a request still gets other requests', async () => {
  const fixture = podCacheFixture();
  fixture.answer = async () => {
    throw new Refusal('there is no such pod');
  };
  await fixture.cache.get(pod('a'), signal);
  await fixture.cache.get(pod('b'), signal);
  expect(fixture.requestedPods).toEqual(['a', 'b']);
});
