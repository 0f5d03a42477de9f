import type { Clock } from '#base/clock.ts';
import { coalesced } from '#base/coalesced.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import type { Mounts } from './mounts.ts';

/** Repairs when somebody doubts that all mounts are served, and goes on for as long as one could not be repaired. */
export interface Repairing extends Disposable {
  look(): Promise<void>;
}

/** Whatever is in the way may be gone in a moment, or last for hours. */
const pause = { shortest: 1_000, longest: 30_000 } as const;

export function createRepairing({ repair }: Pick<Mounts, 'repair'>, clock: Clock, scope: Scope): Repairing {
  const over = new AbortController();
  const own: Scope = { ...scope, signal: AbortSignal.any([scope.signal, over.signal]) };
  let next: Disposable | undefined;
  let ms: number = pause.shortest;

  /** False: some mounts are dead still, or it is not known. */
  async function repaired(): Promise<boolean> {
    try {
      return (await repair(own)).length === 0;
    } catch (thrown) {
      if (!own.signal.aborted) own.log.warn('mounts were not looked at', { why: stowageError(thrown).message });
      return false;
    }
  }

  const look = coalesced(async () => {
    if (own.signal.aborted) return;
    next?.[Symbol.dispose]();
    const isDone = await repaired();
    if (isDone) ms = pause.shortest;
    else if (!own.signal.aborted) {
      next = clock.after(ms, () => void look());
      ms = Math.min(pause.longest, ms * 2);
    }
  });

  return {
    look,
    [Symbol.dispose]: () => {
      over.abort();
      next?.[Symbol.dispose]();
    },
  };
}
