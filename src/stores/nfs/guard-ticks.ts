import type { Time } from '#wire/nfs3/index.ts';

/** When a file has changed so much later that a guard tells the two times apart. All times are the server's. */
export interface GuardTicks {
  /** `isOurs`: the first time is of a release of ours that was answered, so no other copy of it is under way. */
  isPast(first: Time, second: Time, isOurs: boolean): Promise<boolean>;
  /** How long to wait before it is worth another try. */
  pauseMs(first: Time, second: Time): number;
}

export interface GuardTicksParts {
  /** Whether the server compares guards to the nanosecond. Linux before 6.9 compares seconds. */
  comparesNanoseconds(): Promise<boolean>;
}

/** A clock that was set back so far does not come to the first time again soon. */
const setBackSeconds = 60;
/** Less than a tick of most servers. */
const tickMs = 2;

export function createGuardTicks({ comparesNanoseconds }: GuardTicksParts): GuardTicks {
  let known: Promise<boolean> | undefined;

  const precise = (): Promise<boolean> => {
    known ??= comparesNanoseconds().catch((cause: unknown) => {
      known = undefined;
      throw cause;
    });
    return known;
  };

  return {
    isPast: async (first, second, isOurs) => {
      const seconds = second.seconds - first.seconds;
      if (seconds > 0 || seconds < -setBackSeconds) return true;
      if (seconds === 0 && second.nanoseconds === first.nanoseconds) return false;
      return isOurs || (await precise());
    },
    pauseMs: (first, second) =>
      first.seconds === second.seconds && first.nanoseconds !== second.nanoseconds
        ? Math.ceil((1_000_000_000 - second.nanoseconds) / 1_000_000)
        : tickMs,
  };
}
