import type { Scope } from '#base/log.ts';
import { StowageError } from './errors.ts';
import type { OnDelete, StoreName, StorePolicy, VolumeName } from './model.ts';
import type { Store } from './ports.ts';

/** The errors for facets that a store lacks. */
const errorByFacet = {
  adoption: (store: StoreName) =>
    new StowageError(`store '${store}' cannot adopt volumes`, {
      code: 'unsupported',
      reason: 'adoption-unsupported',
      action: 'Create a volume and copy the data into it.',
    }),
  expand: (store: StoreName) =>
    new StowageError(`store '${store}' cannot enlarge volumes`, {
      code: 'unsupported',
      reason: 'expand-unsupported',
      action: 'Create a larger volume and copy the data into it.',
    }),
  rename: (store: StoreName) =>
    new StowageError(`store '${store}' cannot rename volumes`, {
      code: 'unsupported',
      reason: 'rename-unsupported',
      action: 'Create a volume with the other name and copy the data into it.',
    }),
  usage: (store: StoreName) =>
    new StowageError(`store '${store}' cannot tell how much data its volumes hold`, {
      code: 'unsupported',
      reason: 'usage-unsupported',
      action: 'Mount the volume and look there, for example with: df',
    }),
  uses: (store: StoreName) =>
    new StowageError(`store '${store}' keeps no use records, since no other host can use its volumes`, {
      code: 'unsupported',
      reason: 'uses-unsupported',
      action: 'Unmount it where this host has mounted it. To list the mounts: stowage mounts',
    }),
};

/** Throws 'unsupported' if the store lacks the facet. */
export function facetOf<F extends keyof typeof errorByFacet>(store: Store, facet: F): NonNullable<Store[F]> {
  const found = store[facet];
  if (found === undefined) throw errorByFacet[facet](store.name);
  return found;
}

const facetByPolicy = { retain: 'adoption', archive: 'trash' } as const satisfies Partial<
  Record<OnDelete, keyof Store>
>;
type FacetByPolicy = typeof facetByPolicy;

/** The facet that core deletes volumes with under this policy. Throws 'invalid' if the store lacks it. */
export function facetFor<P extends keyof FacetByPolicy>(
  onDelete: P,
  store: Store,
): NonNullable<Store[FacetByPolicy[P]]> {
  const found = store[facetByPolicy[onDelete]];
  if (found === undefined) throw policyUnsupported(store.name, onDelete);
  return found;
}

export function refusePolicy(store: Store, { onDelete }: Pick<StorePolicy, 'onDelete'>): void {
  if (onDelete !== 'delete') facetFor(onDelete, store);
}

function policyUnsupported(store: StoreName, wanted: OnDelete): StowageError {
  return new StowageError(`store '${store}' does not support onDelete=${wanted}`, {
    code: 'invalid',
    reason: 'store-policy-unsupported',
    action: 'Set onDelete=delete on the store, or use a store of another kind.',
  });
}

/** Falls back to listing volumes if the store has no `names`. */
export const namesOf = async (store: Store, scope: Scope): Promise<readonly VolumeName[]> =>
  (await store.names?.(scope)) ?? (await Array.fromAsync(store.list(scope), ({ name }) => name));
