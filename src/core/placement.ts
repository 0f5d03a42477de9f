import { schemeOf } from './store-scheme.ts';

/**
 * Which hosts can use the volumes of a store, and which process runs the store's methods. Known while the store is closed.
 * - `node`: only this machine. Its own Stowage runs the methods.
 * - `anywhere`: any host. Any process that has the store open runs the methods.
 * - `mount-worker`: any host. The methods need a mount of the store, so they run in a worker that has it mounted, never in the controller.
 *
 * Use the functions below instead of comparing a placement with a string, so that a new value changes only this file.
 */
export type Placement = 'node' | 'anywhere' | 'mount-worker';

/** Undefined: this version has no such store kind. An invalid Store object, or one for a newer version, can name an unknown kind. */
export const placementOf = (
  kinds: ReadonlyMap<string, { readonly placement: Placement }>,
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
