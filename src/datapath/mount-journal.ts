import type { Requests } from './journal/requests.ts';
import type { JournaledWrites, Proofs } from './ports.ts';
import type { KeptGrowth } from './quota/account.ts';

/** What a mount has of the journal. */
export interface MountJournal extends Pick<JournaledWrites, 'keep'> {
  readonly proofs: Proofs;
  readonly growth: KeptGrowth;
}

/**
 * Of a mount that is gone the places of its requests, and its row, are somebody else's. What was under way for it comes to its end all
 * the same, and must not leave a trace there.
 */
export function createMountJournal(
  { requests, growth }: { readonly requests: Requests; readonly growth: KeptGrowth },
  ended: AbortSignal,
): MountJournal {
  return {
    keep: (place) => {
      if (!ended.aborted) requests.behind(place);
    },
    proofs: {
      find: (place) => (ended.aborted ? undefined : requests.find(place)),
      write: (place, proof) => {
        if (!ended.aborted) requests.write(place, proof);
      },
    },
    growth: {
      read: growth.read,
      write: (epoch, bytes) => {
        if (!ended.aborted) growth.write(epoch, bytes);
      },
    },
  };
}
