import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { MessageOf } from './protocol.ts';
import { within } from './unless-aborted.ts';

/** Questions to the data path whether all that was written is on the servers' disks, until whoever serves by then answers. */
export interface PendingFlushes {
  /** How many files are not; when the time is up without an answer, one, because some may not be. */
  ask(mount: string, ms: number, signal: AbortSignal): Promise<number>;
  /** Another data path serves: it is asked what its predecessor did not answer. */
  resend(): void;
  answered(answer: MessageOf<'flushed'>): void;
}

interface PendingFlush {
  readonly mount: string;
  readonly endsAt: number;
  readonly answer: PromiseWithResolvers<number>;
}

/** Longer than this nobody waits. */
export const longestFlushMs = 600_000;
/** The data path counts what is left when the time is up; it has so long to say so. */
const graceMs = 1_000;

/** `send` does nothing where nobody serves. */
export function createPendingFlushes(clock: Clock, send: (question: MessageOf<'flush'>) => void): PendingFlushes {
  const pending = new Map<number, PendingFlush>();
  let last = 0;

  const sendQuestion = (ask: number, { mount, endsAt }: PendingFlush): void =>
    send({ kind: 'flush', ask, mount, ms: Math.max(0, Math.round(endsAt - clock.elapsed())) });

  return {
    ask: async (mount, ms, signal) => {
      const ask = ++last;
      const question: PendingFlush = { mount, endsAt: clock.elapsed() + ms, answer: Promise.withResolvers() };
      pending.set(ask, question);
      try {
        sendQuestion(ask, question);
        return await within(question.answer.promise, ms + graceMs, clock, signal);
      } catch (cause) {
        signal.throwIfAborted();
        if (cause instanceof DeadlineExceeded) return 1;
        throw cause;
      } finally {
        pending.delete(ask);
      }
    },
    resend: () => {
      for (const [ask, question] of pending) sendQuestion(ask, question);
    },
    answered: ({ ask, files }) => pending.get(ask)?.answer.resolve(files),
  };
}
