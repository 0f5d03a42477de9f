import { unlessAborted } from '#base/aborted.ts';
import type { Scope } from '#base/log.ts';
import type { Store, StoreKind } from '#core/ports.ts';
import { type VerbPath, wrapVerbs } from './wrapped-store.ts';

/** Verbs without a signal, or that return a sequence of answers. */
type Ungated = 'close' | 'list' | 'filesystemFor' | 'identityOfSubdirectory';
const ungated: readonly string[] = [
  'close',
  'list',
  'filesystemFor',
  'identityOfSubdirectory',
] satisfies readonly Ungated[];

/** The verbs that can be gated. */
export type GatedVerb = Exclude<VerbPath, Ungated>;

export interface Gate {
  /** Resolves when the first call waits at the gate. */
  readonly reached: Promise<void>;
  /** How many calls have reached the gate. */
  readonly waiting: () => number;
  open(): void;
}

interface GateOptions {
  /** Calls at the gate ignore their signals, like a system call on a hung disk. */
  readonly deaf?: boolean;
  /** If given, the gate applies to the store of this name only. */
  readonly store?: string;
}

/** A store kind with gates before its verbs, so that a test can inspect an operation in progress. */
export interface GatedKind extends StoreKind {
  /** From now on, calls of that verb wait until the gate opens or their signal is aborted. */
  close(verb: 'open' | GatedVerb, options?: GateOptions): Gate;
}

interface Closed extends GateOptions {
  pass(scope: Scope): Promise<void>;
}

/** The scope is not always the last argument: options may follow. */
const isScope = (given: unknown): boolean => typeof given === 'object' && given !== null && 'signal' in given;

export function gated(inner: StoreKind): GatedKind {
  const gates = new Map<string, Closed>();

  function close(verb: 'open' | GatedVerb, options: GateOptions = {}): Gate {
    const reached = Promise.withResolvers<void>();
    const passing = Promise.withResolvers<void>();
    let waiting = 0;
    const pass = async ({ signal }: Scope): Promise<void> => {
      waiting++;
      reached.resolve();
      if (options.deaf === true) return await passing.promise;
      await unlessAborted(passing.promise, signal);
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

  const wrap = (store: Store): Store =>
    wrapVerbs(store, (path, verb) => {
      if (ungated.includes(path)) return verb;
      return async (...args) => {
        await through(path, store.name, args.find(isScope) as Scope);
        return await verb(...args);
      };
    });

  return {
    ...inner,
    open: async (config, policy, context, scope) => {
      await through('open', config.name, scope);
      return wrap(await inner.open(config, policy, context, scope));
    },
    close,
  };
}
