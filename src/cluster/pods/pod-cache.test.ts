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

interface Ground {
  readonly clock: ReturnType<typeof createFakeClock>;
  readonly answers: PodCache;
  readonly asked: string[];
  leader: LeaderAddress | undefined;
  answer: (pod: RequestedPod) => Promise<PodAnswer>;
}

function ground(): Ground {
  const clock = createFakeClock();
  const asked: string[] = [];
  const it: Ground = {
    clock,
    asked,
    leader: leaderAt('10.0.0.1'),
    answer: async (one) => answerOf(one),
    answers: createPodCache({
      clock,
      log: silentLog(),
      leader: () => it.leader,
      ask: async (_, one) => {
        asked.push(one.name);
        return await it.answer(one);
      },
    }),
  };
  return it;
}

const failing = async (): Promise<never> => {
  throw new Error('no way');
};

describe('an answer about a pod', () => {
  test('is requested once, also by concurrent callers, and stays available without a leader', async () => {
    const it = ground();
    const both = await Promise.all([it.answers.get(pod('a'), signal), it.answers.get(pod('a'), signal)]);
    it.leader = undefined;
    expect([...both, await it.answers.get(pod('a'), signal)]).toEqual([1, 2, 3].map(() => answerOf(pod('a'))));
    expect(it.asked).toEqual(['a']);
    expect(await it.answers.get(pod('b'), signal)).toBeUndefined();
  });

  test('is not cached for more pods than a node has', async () => {
    const it = ground();
    for (let i = 0; i <= 1_000; i++) await it.answers.get(pod(`p${i}`), signal);
    await it.answers.get(pod('p1000'), signal);
    expect(it.asked).toHaveLength(1_001);
    await it.answers.get(pod('p0'), signal);
    expect(it.asked).toHaveLength(1_002);
  });

  test('is not used for another pod of the same name', async () => {
    const it = ground();
    it.answer = async () => ({ uid: 'uid-other', hostUsers: false });
    expect(await it.answers.get(pod('a'), signal)).toBeUndefined();
    it.answer = async (one) => answerOf(one);
    expect(await it.answers.get(pod('a'), signal)).toEqual(answerOf(pod('a')));
  });

  test('reaches the other callers when one of them stops waiting', async () => {
    const it = ground();
    const { promise, resolve } = Promise.withResolvers<PodAnswer>();
    it.answer = () => promise;
    const leaving = new AbortController();
    const first = it.answers.get(pod('a'), leaving.signal);
    const second = it.answers.get(pod('a'), signal);
    leaving.abort(new Error('enough'));
    await expect(first).rejects.toThrow('enough');
    resolve(answerOf(pod('a')));
    expect(await second).toEqual(answerOf(pod('a')));
    expect(it.asked).toEqual(['a']);
  });
});

describe('a leader that cannot be reached', () => {
  test('is not asked again for a while', async () => {
    const it = ground();
    it.answer = failing;
    expect(await it.answers.get(pod('a'), signal)).toBeUndefined();
    it.clock.advance(9_999);
    expect(await it.answers.get(pod('b'), signal)).toBeUndefined();
    expect(it.asked).toEqual(['a']);
    it.clock.advance(1);
    await it.answers.get(pod('c'), signal);
    expect(it.asked).toEqual(['a', 'c']);
  });

  test('does not prevent requests to the next leader, or to itself when it is back', async () => {
    const it = ground();
    it.answers.markUnreachable(leaderAt('10.0.0.1'));
    expect(await it.answers.get(pod('a'), signal)).toBeUndefined();
    it.leader = leaderAt('10.0.0.2');
    expect(await it.answers.get(pod('a'), signal)).toEqual(answerOf(pod('a')));
    it.leader = leaderAt('10.0.0.1');
    it.answers.markReachable();
    expect(await it.answers.get(pod('b'), signal)).toEqual(answerOf(pod('b')));
  });

  test('differs from a leader that rejects the request', async () => {
    const it = ground();
    it.answer = async () => {
      throw new Refusal('there is no such pod');
    };
    await it.answers.get(pod('a'), signal);
    await it.answers.get(pod('b'), signal);
    expect(it.asked).toEqual(['a', 'b']);
  });
});
