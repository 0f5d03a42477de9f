import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { MessageOf } from './protocol.ts';
import { within } from './waiting.ts';

/** Questions to the data path whether all that was written is on the servers' disks, until whoever serves by then answers. */
export interface Flushes {
  /** How many files are not; when the time is up without an answer, one, because some may not be. */
  ask(mount: string, ms: number, signal: AbortSignal): Promise<number>;
  /** Another data path serves: it is asked what its predecessor did not answer. */
  again(): void;
  answered(answer: MessageOf<'flushed'>): void;
}

interface Asked {
  readonly mount: string;
  readonly endsAt: number;
  readonly answer: PromiseWithResolvers<number>;
}

/** Longer than this nobody waits. */
export const longestFlushMs = 600_000;
/** The data path counts what is left when the time is up; it has so long to say so. */
const graceMs = 1_000;

/** `send` does nothing where nobody serves. */
export function createFlushes(clock: Clock, send: (question: MessageOf<'flush'>) => void): Flushes {
  const open = new Map<number, Asked>();
  let last = 0;

  const put = (ask: number, { mount, endsAt }: Asked): void =>
    send({ kind: 'flush', ask, mount, ms: Math.max(0, Math.round(endsAt - clock.elapsed())) });

  return {
    ask: async (mount, ms, signal) => {
      const ask = ++last;
      const question: Asked = { mount, endsAt: clock.elapsed() + ms, answer: Promise.withResolvers() };
      open.set(ask, question);
      try {
        put(ask, question);
        return await within(question.answer.promise, ms + graceMs, clock, signal);
      } catch (cause) {
        signal.throwIfAborted();
        if (cause instanceof DeadlineExceeded) return 1;
        throw cause;
      } finally {
        open.delete(ask);
      }
    },
    again: () => {
      for (const [ask, question] of open) put(ask, question);
    },
    answered: ({ ask, files }) => open.get(ask)?.answer.resolve(files),
  };
}
