import { unlessAborted } from '#base/aborted.ts';
import { coalesce } from '#base/coalesce.ts';
import type { StoreCheck } from '#core/model.ts';

type Check = (signal: AbortSignal) => Promise<StoreCheck>;
type SharedCheck = (signal: AbortSignal) => Promise<StoreCheck>;

/**
 * Runs one check of a store at a time. Callers that arrive while a check runs share the next one, so that it sees what they changed
 * before.
 */
export function createSharedChecks(): (key: string, check: Check, signal: AbortSignal) => Promise<StoreCheck> {
  const shared = new Map<string, SharedCheck>();
  return (key, check, signal) => {
    const existing = shared.get(key);
    if (existing !== undefined) return existing(signal);
    const sharedCheck = createShared(check, () => {
      if (shared.get(key) === sharedCheck) shared.delete(key);
    });
    shared.set(key, sharedCheck);
    return sharedCheck(signal);
  };
}

function createShared(check: Check, onIdle: () => void): SharedCheck {
  let waitingCallers = 0;
  let isRunning = false;
  let latest: StoreCheck | undefined;
  let stopping = new AbortController();
  const reportIfIdle = (): void => {
    if (waitingCallers === 0 && !isRunning) onIdle();
  };
  const run = coalesce(async () => {
    // All callers may have given up before the check started.
    if (waitingCallers === 0) return;
    isRunning = true;
    stopping = new AbortController();
    try {
      latest = await check(stopping.signal);
    } finally {
      isRunning = false;
      reportIfIdle();
    }
  });
  return async (signal) => {
    waitingCallers++;
    try {
      await unlessAborted(run(), signal);
      return latest as StoreCheck;
    } finally {
      waitingCallers--;
      // Abort the check only when its last caller has left.
      if (waitingCallers === 0) stopping.abort();
      reportIfIdle();
    }
  };
}
