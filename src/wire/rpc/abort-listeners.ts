/**
 * Listeners on the signals that cancel calls. All calls with the same signal share one listener, which stays for a while after
 * the calls have ended: adding and removing a listener for each call would cost as much as the call.
 */
export interface AbortListeners {
  add(signal: AbortSignal): void;
  /** Call it once for each `add`. */
  remove(signal: AbortSignal): void;
  /** Removes the listeners that no pending call uses. */
  removeUnused(): void;
}

interface AbortListener {
  pendingCalls: number;
  readonly stop: () => void;
}

export function createAbortListeners(onAbort: (signal: AbortSignal) => void): AbortListeners {
  const bySignal = new Map<AbortSignal, AbortListener>();

  function watch(signal: AbortSignal): AbortListener {
    const stop = (): void => {
      bySignal.delete(signal);
      onAbort(signal);
    };
    signal.addEventListener('abort', stop, { once: true });
    const listener = { pendingCalls: 0, stop };
    bySignal.set(signal, listener);
    return listener;
  }

  return {
    add: (signal) => {
      (bySignal.get(signal) ?? watch(signal)).pendingCalls++;
    },
    remove: (signal) => {
      const known = bySignal.get(signal);
      if (known !== undefined) known.pendingCalls--;
    },
    removeUnused: () => {
      for (const [signal, { pendingCalls, stop }] of bySignal) {
        if (pendingCalls > 0) continue;
        signal.removeEventListener('abort', stop);
        bySignal.delete(signal);
      }
    },
  };
}
