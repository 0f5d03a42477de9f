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
  get(pod: RequestedPod, signal: AbortSignal): Promise<PodAnswer | undefined>;
  /** Stops sending requests to this leader for a while. */
  markUnreachable(leader: LeaderAddress): void;
  /** Resumes sending requests: the leader answers again. */
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

/** More than the pods that a node can have. */
const maxPods = 1_000;
const retryUnreachableMs = 10_000;

const addressOf = ({ host, port }: LeaderAddress): string => JSON.stringify([host, port]);

export function createPodCache({ clock, log, leader, ask }: PodCacheOptions): PodCache {
  const answers = new Map<string, PodAnswer>();
  const inFlight = new Map<string, Promise<PodAnswer | undefined>>();
  let unreachable = { address: '', retryAt: 0 };

  function markUnreachable(to: LeaderAddress): void {
    unreachable = { address: addressOf(to), retryAt: clock.elapsed() + retryUnreachableMs };
  }

  function remember(answer: PodAnswer): void {
    // Evict the oldest.
    for (const oldest of answers.keys()) {
      if (answers.size < maxPods) break;
      answers.delete(oldest);
    }
    answers.set(answer.uid, answer);
  }

  async function requestAnswer(to: LeaderAddress, pod: RequestedPod): Promise<PodAnswer | undefined> {
    try {
      const answer = await ask(to, pod);
      // The answer is about another pod of the same name.
      if (answer.uid !== pod.uid) return undefined;
      remember(answer);
      return answer;
    } catch (error) {
      if (!(error instanceof Refusal)) markUnreachable(to);
      log.info('could not get data of a pod from the controller', { namespace: pod.namespace, name: pod.name, error });
      return undefined;
    } finally {
      inFlight.delete(pod.uid);
    }
  }

  function startRequest(pod: RequestedPod): Promise<PodAnswer | undefined> | undefined {
    const address = leader();
    if (address === undefined) return undefined;
    if (unreachable.address === addressOf(address) && clock.elapsed() < unreachable.retryAt) return undefined;
    const request = requestAnswer(address, pod);
    inFlight.set(pod.uid, request);
    return request;
  }

  return {
    get: async (pod, signal) => {
      const found = answers.get(pod.uid);
      if (found !== undefined) return found;
      const answer = inFlight.get(pod.uid) ?? startRequest(pod);
      if (answer === undefined) return undefined;
      return await unlessAborted(answer, signal);
    },
    markUnreachable,
    markReachable: () => {
      unreachable = { address: '', retryAt: 0 };
    },
  };
}
