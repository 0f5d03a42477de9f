import { unlessAborted } from '#base/aborted.ts';
import { coalesced } from '#base/coalesced.ts';
import type { StoreCheck } from '#core/model.ts';

type Check = (signal: AbortSignal) => Promise<StoreCheck>;
type SharedCheck = (signal: AbortSignal) => Promise<StoreCheck>;

/**
 * However many ask at once for a check of the same store, one runs; those who asked since it began share the next one,
 * so that what they have changed before is in it.
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
    // All who waited for it may have left before it began.
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
      // It goes on for others, and ends with the last of them.
      if (waiting === 0) stopping.abort();
      idle();
    }
  };
}
