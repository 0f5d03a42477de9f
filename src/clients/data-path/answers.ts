import { type Clock, DeadlineExceeded } from '#base/clock.ts';

/** Whether a keeper answers: it is asked now and then, and when somebody has had no answer. */
export interface Answers extends Disposable {
  /** It has not answered when it was asked last. */
  readonly isSilent: boolean;
  /** Asks now. */
  ask(): void;
}

interface AnswersOptions {
  readonly clock: Clock;
  readonly status: (signal: AbortSignal) => Promise<unknown>;
  /** Called once, unless it answers again meanwhile. */
  readonly hangs: () => void;
}

/** A keeper does next to nothing and answers within milliseconds, on a machine with too much to do within a second. */
export const answerMs = 5_000;
const askEveryMs = 10_000;
/** In a row: one may be due to a pause of this process. */
const mostUnanswered = 2;

export function createAnswers({ clock, status, hangs }: AnswersOptions): Answers {
  const over = new AbortController();
  let unanswered = 0;
  let isAsking = false;
  let next: Disposable | undefined;

  async function hasAnswer(): Promise<boolean> {
    using limit = clock.deadline(answerMs, over.signal);
    try {
      await status(limit.signal);
      return true;
    } catch (cause) {
      // Anything else is an answer, or the end.
      return !(cause instanceof DeadlineExceeded);
    }
  }

  async function askOn(): Promise<void> {
    if (isAsking || over.signal.aborted) return;
    next?.[Symbol.dispose]();
    isAsking = true;
    do {
      unanswered = (await hasAnswer()) ? 0 : unanswered + 1;
      if (unanswered === mostUnanswered) hangs();
    } while (unanswered > 0 && unanswered < mostUnanswered);
    isAsking = false;
    later();
  }

  function later(): void {
    if (!over.signal.aborted) next = clock.after(askEveryMs, () => void askOn());
  }
  later();

  return {
    get isSilent() {
      return unanswered > 0;
    },
    ask: () => void askOn(),
    [Symbol.dispose]: () => {
      over.abort();
      next?.[Symbol.dispose]();
    },
  };
}
