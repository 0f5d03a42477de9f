import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { MessageOf } from './protocol.ts';
import { withTimeout } from './with-timeout.ts';

/** Flush requests to the data path. Each stays pending until a data path answers it, also a successor. */
export interface PendingFlushes {
  /** Returns the number of incomplete files. Returns 1 if no data path answered in time, because there may be some. */
  flush(mount: string, ms: number, signal: AbortSignal): Promise<number>;
  /** Another data path serves: sends it the requests that its predecessor did not answer. */
  resend(): void;
  handleAnswer(answer: MessageOf<'flushed'>): void;
}

interface PendingFlush {
  readonly mount: string;
  readonly endsAt: number;
  readonly answer: PromiseWithResolvers<number>;
}

/** Upper limit of a flush. */
export const maxFlushMs = 600_000;
/** The data path counts the incomplete files when the time is up, and has this long to report them. */
const graceMs = 1_000;

/** `send` does nothing if no data path serves. */
export function createPendingFlushes(clock: Clock, send: (request: MessageOf<'flush'>) => void): PendingFlushes {
  const pending = new Map<number, PendingFlush>();
  let lastAsk = 0;

  const sendRequest = (ask: number, { mount, endsAt }: PendingFlush): void =>
    send({ kind: 'flush', ask, mount, ms: Math.max(0, Math.round(endsAt - clock.elapsed())) });

  return {
    flush: async (mount, ms, signal) => {
      const ask = ++lastAsk;
      const request: PendingFlush = { mount, endsAt: clock.elapsed() + ms, answer: Promise.withResolvers() };
      pending.set(ask, request);
      try {
        sendRequest(ask, request);
        return await withTimeout(request.answer.promise, ms + graceMs, clock, signal);
      } catch (cause) {
        signal.throwIfAborted();
        if (cause instanceof DeadlineExceeded) return 1;
        throw cause;
      } finally {
        pending.delete(ask);
      }
    },
    resend: () => {
      for (const [ask, request] of pending) sendRequest(ask, request);
    },
    handleAnswer: ({ ask, files }) => pending.get(ask)?.answer.resolve(files),
  };
}
