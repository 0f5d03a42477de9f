import type { Scope } from '#base/log.ts';
import type { Store, StoreKind } from '#core/ports.ts';

type Verb =
  | 'open'
  | 'create'
  | 'expand'
  | 'delete'
  | 'rename'
  | 'label'
  | 'names'
  | 'marks'
  | 'check'
  | 'ping'
  | 'room'
  | 'reclaim'
  | 'get'
  | 'sweep'
  | 'source'
  | 'trash'
  | 'usage'
  | 'noteUse';

export interface Gate {
  /** Resolves when a call stands before the gate. */
  readonly reached: Promise<void>;
  /** How many have come so far. */
  readonly waiting: () => number;
  open(): void;
}

interface GateOptions {
  /** Who waits there hears no signal, like a call of the system on a disk that is gone. */
  readonly deaf?: boolean;
  /** Only that store. */
  readonly store?: string;
}

/** Stores of a kind, with gates before their verbs: a test can look while an operation is in the middle of its work. */
export interface GatedKind extends StoreKind {
  /** From now on calls of that verb wait, until the gate opens or their signal ends. */
  close(verb: Verb, options?: GateOptions): Gate;
}

interface Closed extends GateOptions {
  pass(scope: Scope): Promise<void>;
}

/** Options may follow it. */
const isScope = (given: unknown): boolean => typeof given === 'object' && given !== null && 'signal' in given;

export function gated(inner: StoreKind): GatedKind {
  const gates = new Map<string, Closed>();

  function close(verb: Verb, options: GateOptions = {}): Gate {
    const reached = Promise.withResolvers<void>();
    const passing = Promise.withResolvers<void>();
    let waiting = 0;
    const pass = async ({ signal }: Scope): Promise<void> => {
      waiting++;
      reached.resolve();
      if (options.deaf === true) return await passing.promise;
      const { promise: ended, reject } = Promise.withResolvers<never>();
      const stop = (): void => reject(signal.reason);
      if (signal.aborted) stop();
      signal.addEventListener('abort', stop, { once: true });
      await Promise.race([passing.promise, ended]).finally(() => signal.removeEventListener('abort', stop));
    };
    gates.set(verb, { ...options, pass });
    const open = (): void => {
      gates.delete(verb);
      passing.resolve();
    };
    return { reached: reached.promise, waiting: () => waiting, open };
  }

  async function through(verb: string, store: string, scope: Scope): Promise<void> {
    const gate = gates.get(verb);
    if (gate !== undefined && (gate.store ?? store) === store) await gate.pass(scope);
  }

  const ungated = ['close', 'list', 'filesystemFor'];
  const wrap = (store: Store): Store => {
    const verbs = Object.entries(store).map(([verb, value]) => {
      if (typeof value !== 'function' || ungated.includes(verb)) return [verb, value];
      const gatedVerb = async (...args: readonly unknown[]): Promise<unknown> => {
        await through(verb, store.name, args.find(isScope) as Scope);
        return await value(...args);
      };
      return [verb, gatedVerb];
    });
    const list: Store['trash']['list'] = async (scope) => {
      await through('trash', store.name, scope);
      return await store.trash.list(scope);
    };
    return { ...(Object.fromEntries(verbs) as Store), trash: { ...store.trash, list } };
  };

  return {
    ...inner,
    open: async (config, policy, context, scope) => {
      await through('open', config.name, scope);
      return wrap(await inner.open(config, policy, context, scope));
    },
    close,
  };
}
