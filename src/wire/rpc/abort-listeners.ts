/**
 * Signals that end calls. All calls of a signal share one listener, which stays for a while when they have ended: to add
 * and remove one for each call would cost as much as the call.
 */
export interface Watches {
  add(signal: AbortSignal): void;
  /** For each `add`. */
  remove(signal: AbortSignal): void;
  /** Stops listening where nobody is interested any more. */
  tidy(): void;
}

interface Watch {
  users: number;
  readonly stop: () => void;
}

export function createWatches(onAbort: (signal: AbortSignal) => void): Watches {
  const bySignal = new Map<AbortSignal, Watch>();

  function watch(signal: AbortSignal): Watch {
    const stop = (): void => {
      bySignal.delete(signal);
      onAbort(signal);
    };
    signal.addEventListener('abort', stop, { once: true });
    const made = { users: 0, stop };
    bySignal.set(signal, made);
    return made;
  }

  return {
    add: (signal) => {
      (bySignal.get(signal) ?? watch(signal)).users++;
    },
    remove: (signal) => {
      const known = bySignal.get(signal);
      if (known !== undefined) known.users--;
    },
    tidy: () => {
      for (const [signal, { users, stop }] of bySignal) {
        if (users > 0) continue;
        signal.removeEventListener('abort', stop);
        bySignal.delete(signal);
      }
    },
  };
}
