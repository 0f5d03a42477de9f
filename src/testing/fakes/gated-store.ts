import type { Scope } from '#base/log.ts';
import type { Store, StoreKind } from '#core/ports.ts';

type Verb = 'create' | 'expand' | 'delete' | 'rename' | 'label' | 'names';

export interface Gate {
  /** Resolves when a call stands before the gate. */
  readonly reached: Promise<void>;
  /** How many have come so far. */
  readonly waiting: () => number;
  open(): void;
}

/** Stores of a kind, with gates before their verbs: a test can look while an operation is in the middle of its work. */
export interface GatedKind extends StoreKind {
  /** From now on calls of that verb wait, until the gate opens or their signal ends. */
  close(verb: Verb): Gate;
}

export function gated(inner: StoreKind): GatedKind {
  const gates = new Map<Verb, (scope: Scope) => Promise<void>>();

  function close(verb: Verb): Gate {
    const reached = Promise.withResolvers<void>();
    const passing = Promise.withResolvers<void>();
    let waiting = 0;
    gates.set(verb, async ({ signal }) => {
      waiting++;
      reached.resolve();
      const { promise: ended, reject } = Promise.withResolvers<never>();
      const stop = (): void => reject(signal.reason);
      if (signal.aborted) stop();
      signal.addEventListener('abort', stop, { once: true });
      await Promise.race([passing.promise, ended]).finally(() => signal.removeEventListener('abort', stop));
    });
    const open = (): void => {
      gates.delete(verb);
      passing.resolve();
    };
    return { reached: reached.promise, waiting: () => waiting, open };
  }

  const through = async (verb: Verb, scope: Scope): Promise<void> => await gates.get(verb)?.(scope);

  function wrap(store: Store): Store {
    return {
      ...store,
      create: async (want, scope) => {
        await through('create', scope);
        return await store.create(want, scope);
      },
      expand: async (volume, bytes, scope) => {
        await through('expand', scope);
        return await store.expand(volume, bytes, scope);
      },
      delete: async (volume, scope) => {
        await through('delete', scope);
        await store.delete(volume, scope);
      },
      rename: async (volume, to, scope) => {
        await through('rename', scope);
        return await store.rename(volume, to, scope);
      },
      label: async (volume, labels, scope) => {
        await through('label', scope);
        return await store.label(volume, labels, scope);
      },
      names: async (scope) => {
        await through('names', scope);
        return await store.names(scope);
      },
    };
  }

  return {
    ...inner,
    open: async (...args) => wrap(await inner.open(...args)),
    close,
  };
}
