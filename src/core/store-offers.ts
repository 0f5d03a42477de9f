import type { StoreKind, StoreOffers } from './ports.ts';

export type KindsWithOffers = ReadonlyMap<string, Pick<StoreKind, 'offers'>>;

/** The stores to recommend to a user who needs this, of each kind that offers it. Empty: no kind does. */
export const storesOffering = (what: keyof StoreOffers, kinds: KindsWithOffers): string =>
  [...kinds.values()].flatMap(({ offers }) => offers?.[what] ?? []).join(', or ');
