import type { StowageError } from '#core/errors.ts';
import type { Store, StoreKind } from '#core/ports.ts';

/** Stores of a kind whose verbs a test can make fail. */
export interface RefusingKind extends StoreKind {
  /** From now on calls of that verb fail. */
  fail(verb: keyof Store, error: StowageError): Refusing;
}

export interface Refusing {
  /** How many calls failed so far. */
  readonly refused: () => number;
  /** Stops refusing: later calls work. */
  stop(): void;
}

export function refusing(inner: StoreKind): RefusingKind {
  const errors = new Map<string, () => StowageError>();

  const wrap = (store: Store): Store => {
    const verbs = Object.entries(store).map(([verb, value]) => {
      if (typeof value !== 'function') return [verb, value];
      const verbOrRefusal = (...args: readonly unknown[]): unknown => {
        const refusal = errors.get(verb);
        return refusal === undefined ? value(...args) : Promise.reject(refusal());
      };
      return [verb, verbOrRefusal];
    });
    return Object.fromEntries(verbs) as Store;
  };

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
