import { type Clock, DeadlineExceeded } from '#base/clock.ts';

/** Checks whether a keeper answers: periodically, and when a caller got no answer. */
export interface KeeperLiveness extends Disposable {
  /** The keeper did not answer the last check. */
  readonly isSilent: boolean;
  /** Checks now. */
  check(): void;
}

interface KeeperLivenessOptions {
  readonly clock: Clock;
  readonly status: (signal: AbortSignal) => Promise<unknown>;
  /** Called once when the keeper hangs; again only if it answered in between. */
  readonly onHang: () => void;
}

/** A keeper does very little and answers within milliseconds, on an overloaded machine within a second. */
export const keeperTimeoutMs = 5_000;
const checkEveryMs = 10_000;
/** Consecutive unanswered checks that mean a hang. A pause of this process may cause a single one. */
const maxUnanswered = 2;

export function createKeeperLiveness({ clock, status, onHang }: KeeperLivenessOptions): KeeperLiveness {
  const disposal = new AbortController();
  let unanswered = 0;
  let isChecking = false;
  let nextCheck: Disposable | undefined;

  async function hasAnswer(): Promise<boolean> {
    using limit = clock.deadline(keeperTimeoutMs, disposal.signal);
    try {
      await status(limit.signal);
      return true;
    } catch (cause) {
      // Any other error is an answer too, or the keeper has ended.
      return !(cause instanceof DeadlineExceeded);
    }
  }

  async function runCheck(): Promise<void> {
    if (isChecking || disposal.signal.aborted) return;
    nextCheck?.[Symbol.dispose]();
    isChecking = true;
    do {
      unanswered = (await hasAnswer()) ? 0 : unanswered + 1;
      if (unanswered === maxUnanswered) onHang();
    } while (unanswered > 0 && unanswered < maxUnanswered);
    isChecking = false;
    scheduleCheck();
  }

  function scheduleCheck(): void {
    if (!disposal.signal.aborted) nextCheck = clock.after(checkEveryMs, () => void runCheck());
  }
  scheduleCheck();

  return {
    get isSilent() {
      return unanswered > 0;
    },
    check: () => void runCheck(),
    [Symbol.dispose]: () => {
      disposal.abort();
      nextCheck?.[Symbol.dispose]();
    },
  };
}
