import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { type LeaderAddress, Refusal } from '../tunnel/leader-connection.ts';
import type { PodAnswer } from './pod-handler.ts';

export interface RequestedPod {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
}

/** Caches the leader's answers about pods. An answer never changes for the same pod uid. */
export interface PodCache {
  /** Undefined if the leader cannot be reached, or another pod has the name. Concurrent callers share one request. */
  of(pod: RequestedPod, signal: AbortSignal): Promise<PodAnswer | undefined>;
  /** Stops asking this leader for a while. */
  markUnreachable(leader: LeaderAddress): void;
  /** The leader answers again. */
  markReachable(): void;
}

export interface PodCacheOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Undefined if there is no leader. */
  readonly leader: () => LeaderAddress | undefined;
  /** Must take bounded time. Throws a Refusal if the leader was reached and rejected the request. */
  readonly ask: (leader: LeaderAddress, pod: RequestedPod) => Promise<PodAnswer>;
}

/** More than the pods of a node. */
const maxPods = 1_000;
const unreachableMs = 10_000;

const addressOf = ({ host, port }: LeaderAddress): string => JSON.stringify([host, port]);

export function createPodCache({ clock, log, leader, ask }: PodCacheOptions): PodCache {
  const known = new Map<string, PodAnswer>();
  const asking = new Map<string, Promise<PodAnswer | undefined>>();
  let silent = { address: '', until: 0 };

  function unreached(to: LeaderAddress): void {
    silent = { address: addressOf(to), until: clock.elapsed() + unreachableMs };
  }

  function remember(answer: PodAnswer): void {
    // Evict the oldest.
    for (const oldest of known.keys()) {
      if (known.size < maxPods) break;
      known.delete(oldest);
    }
    known.set(answer.uid, answer);
  }

  async function asked(to: LeaderAddress, pod: RequestedPod): Promise<PodAnswer | undefined> {
    try {
      const answer = await ask(to, pod);
      // The answer is about another pod of the same name.
      if (answer.uid !== pod.uid) return undefined;
      remember(answer);
      return answer;
    } catch (error) {
      if (!(error instanceof Refusal)) unreached(to);
      log.info('could not ask the controller about a pod', { namespace: pod.namespace, name: pod.name, error });
      return undefined;
    } finally {
      asking.delete(pod.uid);
    }
  }

  function answerFor(pod: RequestedPod): Promise<PodAnswer | undefined> | undefined {
    const to = leader();
    if (to === undefined) return undefined;
    if (silent.address === addressOf(to) && clock.elapsed() < silent.until) return undefined;
    const request = asked(to, pod);
    asking.set(pod.uid, request);
    return request;
  }

  return {
    of: async (pod, signal) => {
      const found = known.get(pod.uid);
      if (found !== undefined) return found;
      const answer = asking.get(pod.uid) ?? answerFor(pod);
      if (answer === undefined) return undefined;
      return await unlessAborted(answer, signal);
    },
    markUnreachable: unreached,
    markReachable: () => {
      silent = { address: '', until: 0 };
    },
  };
}
