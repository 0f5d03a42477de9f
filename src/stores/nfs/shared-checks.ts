import { unlessAborted } from '#base/aborted.ts';
import { coalesced } from '#base/coalesced.ts';
import type { StoreCheck } from '#core/model.ts';

type Check = (signal: AbortSignal) => Promise<StoreCheck>;
type SharedCheck = (signal: AbortSignal) => Promise<StoreCheck>;

/**
 * Runs one check of a store at a time. Callers that arrive while a check runs share the next one, so that it sees what they changed
 * before.
 */
export function createSharedChecks(): (about: string, check: Check, signal: AbortSignal) => Promise<StoreCheck> {
  const shared = new Map<string, SharedCheck>();
  return (about, check, signal) => {
    const known = shared.get(about);
    if (known !== undefined) return known(signal);
    const made = createShared(check, () => {
      if (shared.get(about) === made) shared.delete(about);
    });
    shared.set(about, made);
    return made(signal);
  };
}

function createShared(check: Check, onIdle: () => void): SharedCheck {
  let waiting = 0;
  let isRunning = false;
  let latest: StoreCheck | undefined;
  let stopping = new AbortController();
  const idle = (): void => {
    if (waiting === 0 && !isRunning) onIdle();
  };
  const run = coalesced(async () => {
    // All callers may have given up before it started.
    if (waiting === 0) return;
    isRunning = true;
    stopping = new AbortController();
    try {
      latest = await check(stopping.signal);
    } finally {
      isRunning = false;
      idle();
    }
  });
  return async (signal) => {
    waiting++;
    try {
      await unlessAborted(run(), signal);
      return latest as StoreCheck;
    } finally {
      waiting--;
      // The check goes on until its last caller has left.
      if (waiting === 0) stopping.abort();
      idle();
    }
  };
}
