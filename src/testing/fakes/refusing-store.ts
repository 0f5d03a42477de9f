import type { StowageError } from '#core/errors.ts';
import type { Store, StoreKind } from '#core/ports.ts';
import { type VerbPath, wrapVerbs } from './wrapped-store.ts';

/** A store kind whose verbs fail when a test says so. */
export interface RefusingKind extends StoreKind {
  /** Calls of that verb fail from now on. */
  fail(verb: VerbPath, error: StowageError): Refusing;
}

export interface Refusing {
  /** The number of calls that have failed. */
  readonly refused: () => number;
  /** Later calls succeed again. */
  stop(): void;
}

export function refusing(inner: StoreKind): RefusingKind {
  const errors = new Map<string, () => StowageError>();

  const wrap = (store: Store): Store =>
    wrapVerbs(store, (path, verb) => (...args) => {
      const refusal = errors.get(path);
      return refusal === undefined ? verb(...args) : Promise.reject(refusal());
    });

  return {
    ...inner,
    open: async (config, policy, context, scope) => wrap(await inner.open(config, policy, context, scope)),
    fail: (verb, error) => {
      let refused = 0;
      errors.set(verb, () => {
        refused++;
        return error;
      });
      return { refused: () => refused, stop: () => errors.delete(verb) };
    },
  };
}
