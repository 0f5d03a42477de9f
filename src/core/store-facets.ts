import { StowageError } from './errors.ts';
import type { OnDelete, StoreName, StorePolicy } from './model.ts';
import type { Store } from './ports.ts';

/** The errors for facets that a store lacks. */
const errors = {
  adoption: (store: StoreName) =>
    new StowageError(`store '${store}' cannot adopt volumes`, {
      code: 'unsupported',
      reason: 'adoption-unsupported',
      action: 'Create a volume and copy the data into it.',
    }),
  uses: (store: StoreName) =>
    new StowageError(`store '${store}' has no records of who uses its volumes: no other host can`, {
      code: 'unsupported',
      reason: 'uses-unsupported',
      action: 'See where this host has mounted it, and unmount it there: stowage mounts',
    }),
};

/** Throws 'unsupported' if the store lacks the facet. */
export function facetOf<F extends keyof typeof errors>(store: Store, facet: F): NonNullable<Store[F]> {
  const found = store[facet];
  if (found === undefined) throw errors[facet](store.name);
  return found;
}

/** The facet that deletes volumes with this policy. Throws 'invalid' if the store lacks it. */
export function adoptionForRetain({ adoption, name }: Store): NonNullable<Store['adoption']> {
  if (adoption === undefined) throw policyUnsupported(name, 'retain');
  return adoption;
}

export function refusePolicy(store: Store, { onDelete }: Pick<StorePolicy, 'onDelete'>): void {
  if (onDelete === 'retain') adoptionForRetain(store);
}

function policyUnsupported(store: StoreName, wanted: OnDelete): StowageError {
  return new StowageError(`store '${store}' does not support onDelete=${wanted}`, {
    code: 'invalid',
    reason: 'store-policy-unsupported',
    action: 'Set onDelete=delete on the store, or use a store of another kind.',
  });
}
