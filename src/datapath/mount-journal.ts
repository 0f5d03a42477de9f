import type { Requests } from './journal/requests.ts';
import type { JournaledWrites, Proofs } from './ports.ts';
import type { StoredGrowth } from './quota/account.ts';

/** A mount's part of the journal. */
export interface MountJournal extends Pick<JournaledWrites, 'keep'> {
  readonly proofs: Proofs;
  readonly growth: StoredGrowth;
}

/**
 * After a mount is gone, its row and the places of its requests belong to others. Work still in flight for it finishes
 * without writing there.
 */
export function createMountJournal(
  { requests, growth }: { readonly requests: Requests; readonly growth: StoredGrowth },
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
