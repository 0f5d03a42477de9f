export type Facts = Readonly<Record<string, unknown>>;

/** Messages are constant. Put variable data into `facts`. */
export interface Log {
  debug(message: string, facts?: Facts): void;
  info(message: string, facts?: Facts): void;
  warn(message: string, facts?: Facts): void;
  error(message: string, facts?: Facts): void;
  with(facts: Facts): Log;
}

/** Passed to every call that can wait: how to stop it, and where to log. */
export interface Scope {
  readonly signal: AbortSignal;
  readonly log: Log;
}

export function silentLog(): Log {
  const nothing = (): void => undefined;
  const log: Log = { debug: nothing, info: nothing, warn: nothing, error: nothing, with: () => log };
  return log;
}
