import type { XdrWriter } from '../xdr/writer.ts';

/** A reply from after its xid and type. What it gives is sent behind it, uncopied. */
export type Layout = (writer: XdrWriter) => Uint8Array | undefined;

/**
 * Answers to calls that must not be done twice. A client whose connection broke sends them again, on a new connection
 * and under the same xid: it gets the first answer, or none while the first is still being worked on.
 */
export interface ReplayCache {
  once(key: string, work: () => Layout | Promise<Layout>): Layout | undefined | Promise<Layout | undefined>;
}

/** Enough for what many clients have under way; each is a few hundred bytes. */
const kept = 4096;

export function createReplayCache(): ReplayCache {
  const answers = new Map<string, Layout | 'running'>();

  function keep(key: string, answer: Layout | 'running'): void {
    answers.delete(key);
    answers.set(key, answer);
    if (answers.size <= kept) return;
    for (const [oldest, what] of answers) {
      if (what === 'running') continue;
      answers.delete(oldest);
      return;
    }
  }

  return {
    once: (key, work) => {
      const known = answers.get(key);
      if (known === 'running') return undefined;
      if (known !== undefined) return known;
      keep(key, 'running');
      const done = work();
      if (!(done instanceof Promise)) {
        keep(key, done);
        return done;
      }
      return done.then((answer) => {
        keep(key, answer);
        return answer;
      });
    },
  };
}
