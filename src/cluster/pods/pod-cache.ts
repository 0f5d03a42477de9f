import { aborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { Refusal, type LeaderAddress } from '../tunnel/leader-connection.ts';
import type { PodAnswer } from './pod-handler.ts';

export interface RequestedPod {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
}

/** What whoever leads says of pods, as far as it has to be asked: what is told of a pod does not change as long as it is that pod. */
export interface PodCache {
  /** Undefined: nobody could be asked, or it is another's name by now. Who asks for the same pod meanwhile waits for the same answer. */
  of(pod: RequestedPod, signal: AbortSignal): Promise<PodAnswer | undefined>;
  /** It does not answer: for a while nobody waits for it again. */
  markUnreachable(leader: LeaderAddress): void;
  /** It does. */
  markReachable(): void;
}

export interface PodCacheOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Undefined: nobody leads. */
  readonly leader: () => LeaderAddress | undefined;
  /** In bounded time. Throws a Refusal, where there is nothing wrong with the way. */
  readonly ask: (leader: LeaderAddress, pod: RequestedPod) => Promise<PodAnswer>;
}

/** More than there are pods on a node. */
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
    // The first in is the first out.
    for (const oldest of known.keys()) {
      if (known.size < maxPods) break;
      known.delete(oldest);
    }
    known.set(answer.uid, answer);
  }

  async function asked(to: LeaderAddress, pod: RequestedPod): Promise<PodAnswer | undefined> {
    try {
      const answer = await ask(to, pod);
      // Another pod of the same name says nothing of this one.
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
    const begun = asked(to, pod);
    asking.set(pod.uid, begun);
    return begun;
  }

  return {
    of: async (pod, signal) => {
      const found = known.get(pod.uid);
      if (found !== undefined) return found;
      const answer = asking.get(pod.uid) ?? answerFor(pod);
      if (answer === undefined) return undefined;
      const gone = new AbortController();
      const either = AbortSignal.any([signal, gone.signal]);
      try {
        const first = await Promise.race([answer, aborted(either).then(() => undefined)]);
        signal.throwIfAborted();
        return first;
      } finally {
        gone.abort();
      }
    },
    markUnreachable: unreached,
    markReachable: () => {
      silent = { address: '', until: 0 };
    },
  };
}
