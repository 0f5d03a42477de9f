import type { LedgerFiles } from '#datapath/quota/ledger-files.ts';
import { createFakeClock, type FakeClock } from './clock.ts';

/** A folder that several nodes share. The seed decides the order in which the server executes their requests. */
export interface SharedFolder {
  readonly clock: FakeClock;
  readonly texts: Map<string, string>;
  /** The folder as one node sees it. */
  files(): LedgerFiles;
  /** Waits until the server has executed another request, at a random point of the schedule. */
  turn(): Promise<void>;
  random(below: number): number;
  /** Executes the requests one by one until `done`, and calls `look` after each one. */
  run(done: Promise<unknown>, look: () => void): Promise<void>;
}

/** Ends a run that would continue forever. */
const mostSteps = 200_000;
const idleMs = 250;

export function createSharedFolder(seed: number): SharedFolder {
  const clock = createFakeClock();
  const texts = new Map<string, string>();
  const marks = new Map<string, number>();
  const waiting: (() => void)[] = [];
  const random = createRandom(seed);
  let marked = 0;

  const turn = (): Promise<void> => {
    const { promise, resolve } = Promise.withResolvers<void>();
    waiting.push(resolve);
    return promise;
  };
  /** Sends a request and returns its answer. Other requests run between the two. */
  const asked = async <T>(work: () => T): Promise<T> => {
    await turn();
    const result = work();
    await turn();
    return result;
  };
  const put = (name: string, text: string): void => {
    texts.set(name, text);
    marks.set(name, ++marked);
  };

  return {
    clock,
    texts,
    turn,
    random,
    files: () => ({
      names: () => asked(() => [...texts.keys()]),
      read: (name) => asked(() => texts.get(name)),
      write: (name, text) => asked(() => put(name, text)),
      remove: (name) => asked(() => void texts.delete(name)),
      tryCreate: (name, text) =>
        asked(() => {
          if (texts.has(name)) return false;
          put(name, text);
          return true;
        }),
      fingerprint: (name) => asked(() => (texts.has(name) ? String(marks.get(name)) : undefined)),
      touch: (name, ifLooks) =>
        asked(() => {
          if (!texts.has(name) || (ifLooks !== undefined && String(marks.get(name)) !== ifLooks)) return false;
          marks.set(name, ++marked);
          return true;
        }),
    }),
    run: async (done, look) => {
      let isDone = false;
      const end = done.finally(() => {
        isDone = true;
      });
      end.catch(() => undefined);
      for (let steps = 0; !isDone; steps++) {
        if (steps > mostSteps) throw new Error(`still running after ${mostSteps} steps`);
        // Callbacks of resolved promises run before the next request.
        await new Promise(setImmediate);
        const [next] = waiting.splice(random(waiting.length), 1);
        if (next === undefined) clock.advance(idleMs);
        else next();
        if (random(50) === 0) clock.advance(random(40));
        look();
      }
      await end;
    },
  };
}

/** A seeded random generator. */
function createRandom(seed: number): (below: number) => number {
  let state = seed >>> 0 || 1;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return below <= 0 ? 0 : (state >>> 0) % below;
  };
}
