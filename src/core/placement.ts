import type { StoreKind } from './ports.ts';
import { schemeOf } from './store-uri.ts';

/**
 * Who can use the volumes of a store, and which process runs its verbs. Known while the store is closed.
 * - `node`: only this machine. Its own Stowage runs the verbs.
 * - `anywhere`: any host. Any process that has the store open runs them.
 * - `mount-worker`: any host. The verbs need a mount of the store, so they run in a worker that has it mounted, never in the controller.
 *
 * Ask the functions below instead of comparing a placement with a string: a new value then changes only this file.
 */
export type Placement = 'node' | 'anywhere' | 'mount-worker';

/** Undefined: this Stowage has no such kind. The Store object of a newer Stowage, or an invalid one, can name one. */
export const placementOf = (
  kinds: ReadonlyMap<string, Pick<StoreKind, 'placement'>>,
  uri: string,
): Placement | undefined => kinds.get(schemeOf(uri))?.placement;

interface PlacementRules {
  readonly isShared: boolean;
  readonly opensInController: boolean;
}

/** A placement without a row does not compile. */
const rules: Readonly<Record<Placement, PlacementRules>> = {
  node: { isShared: false, opensInController: false },
  anywhere: { isShared: true, opensInController: true },
  'mount-worker': { isShared: true, opensInController: false },
};

/** Other hosts can use the store's volumes. */
export const isShared = (placement: Placement): boolean => rules[placement].isShared;

// Both are false for an unknown kind, so neither is the negation of the other.
export const isOnNode = (placement: Placement | undefined): boolean => placement !== undefined && !isShared(placement);
export const opensInController = (placement: Placement | undefined): boolean =>
  placement !== undefined && rules[placement].opensInController;
