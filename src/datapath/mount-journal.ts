import type { Requests } from './journal/requests.ts';
import type { JournaledWrites, Proofs } from './ports.ts';
import type { StoredGrowth } from './quota/account.ts';

/** A mount's part of the journal. */
export interface MountJournal extends Pick<JournaledWrites, 'keep'> {
  readonly proofs: Proofs;
  readonly growth: StoredGrowth;
}

/**
 * After a mount is gone, its row and the places of its requests belong to other mounts. Work still in flight for it
 * finishes without writing there.
 */
export function createMountJournal(
  { requests, growth }: { readonly requests: Requests; readonly growth: StoredGrowth },
  mountEnded: AbortSignal,
): MountJournal {
  return {
    keep: (place) => {
      if (!mountEnded.aborted) requests.markBehind(place);
    },
    proofs: {
      find: (place) => (mountEnded.aborted ? undefined : requests.find(place)),
      write: (place, proof) => {
        if (!mountEnded.aborted) requests.write(place, proof);
      },
    },
    growth: {
      read: growth.read,
      write: (epoch, bytes) => {
        if (!mountEnded.aborted) growth.write(epoch, bytes);
      },
    },
  };
}
