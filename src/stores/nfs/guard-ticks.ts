import type { Time } from '#wire/nfs3/index.ts';

/** Tells whether two ctimes of a file differ for the server's guard check. All times are the server's. */
export interface GuardTicks {
  /** `isOurs`: our own release set the first time, and the server answered it. No copy of that call is in flight. */
  isPast(first: Time, second: Time, isOurs: boolean): Promise<boolean>;
  /** How long to wait before the next attempt. */
  pauseMs(first: Time, second: Time): number;
}

export interface GuardTicksParts {
  /** Whether the server compares guards to the nanosecond. Linux before 6.9 compares seconds. */
  comparesNanoseconds(): Promise<boolean>;
}

/** If the server's clock was set back by more than this, it will not reach the first time again soon. */
const maxSetBackSeconds = 60;
/** Shorter than the timestamp granularity of most servers. */
const tickMs = 2;

export function createGuardTicks({ comparesNanoseconds }: GuardTicksParts): GuardTicks {
  let precision: Promise<boolean> | undefined;

  const isPrecise = (): Promise<boolean> => {
    precision ??= comparesNanoseconds().catch((cause: unknown) => {
      precision = undefined;
      throw cause;
    });
    return precision;
  };

  return {
    isPast: async (first, second, isOurs) => {
      const seconds = second.seconds - first.seconds;
      if (seconds > 0 || seconds < -maxSetBackSeconds) return true;
      if (seconds === 0 && second.nanoseconds === first.nanoseconds) return false;
      return isOurs || (await isPrecise());
    },
    pauseMs: (first, second) =>
      first.seconds === second.seconds && first.nanoseconds !== second.nanoseconds
        ? Math.ceil((1_000_000_000 - second.nanoseconds) / 1_000_000)
        : tickMs,
  };
}
