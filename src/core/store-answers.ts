import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/patience.ts';
import { stowageError } from './errors.ts';
import type { StoreName } from './model.ts';
import type { Store } from './ports.ts';
import type { Stores } from './stores.ts';

/** Which of the stores that others can change answer, and which are not worth waiting for. */
export interface StoreAnswers {
  /** Whether it has answered; what only we can change need not be asked. One that was silent lately is not asked. */
  ask(name: StoreName, scope: Scope, ask: (open: Store) => Promise<void>): Promise<boolean>;
  /** Those that did not answer lately. */
  late(names: readonly StoreName[]): readonly StoreName[];
  /** Those that are open and do not answer, as of now. */
  silent(names: readonly StoreName[], scope: Scope): Promise<ReadonlySet<string>>;
}

/** A store that is alive has listed its names by then. */
const patienceMs = 3_000;
/** Whether it is there at all takes it one call. */
const pingPatienceMs = 2_000;
/** Who took longer to fail is not asked again for a while. */
const quickMs = 1_000;
const restMs = 10_000;

export function createStoreAnswers(parts: {
  readonly clock: Clock;
  readonly stores: () => Pick<Stores, 'view' | 'use'>;
}): StoreAnswers {
  const { clock, stores } = parts;
  /** Asked and not answering, and until when: nobody waits for those meanwhile. */
  const late = new Map<StoreName, number>();
  const restOf = (name: StoreName): number => (late.get(name) ?? 0) - clock.elapsed();

  async function answers(
    name: StoreName,
    scope: Scope,
    ask: (open: Store) => Promise<void>,
    patience: number,
  ): Promise<boolean> {
    const since = clock.elapsed();
    /** One that says no at once costs nobody anything, and may say yes the next time. */
    const failed = (): void => {
      const now = clock.elapsed();
      if (now - since > quickMs) late.set(name, now + restMs);
      else late.delete(name);
    };
    const asked = stores().use(name, ask);
    if (!(await endsWithin(asked, patience, clock))) {
      late.set(name, Number.POSITIVE_INFINITY);
      asked.then(() => late.delete(name), failed);
      return false;
    }
    try {
      await asked;
      late.delete(name);
      return true;
    } catch (thrown) {
      scope.signal.throwIfAborted();
      failed();
      scope.log.warn('store did not answer', { store: name, why: stowageError(thrown).message });
      return false;
    }
  }

  /** Nothing is asked of one that still owes an answer. */
  async function isSilent(name: StoreName, scope: Scope): Promise<boolean> {
    const { store } = stores().view(name);
    if (store?.ping === undefined) return store !== undefined && restOf(name) > 0;
    if (restOf(name) === Number.POSITIVE_INFINITY) return true;
    return !(await answers(name, scope, async (open) => await open.ping?.(scope), pingPatienceMs));
  }

  return {
    ask: async (name, scope, ask) => {
      const { store } = stores().view(name);
      if (store?.shared !== true) return store !== undefined;
      return restOf(name) <= 0 && (await answers(name, scope, ask, patienceMs));
    },
    late: (names) => names.filter((name) => restOf(name) > 0),
    silent: async (names, scope) => {
      const asked = await Promise.all(names.map((name) => isSilent(name, scope)));
      return new Set(names.filter((_name, index) => asked[index]));
    },
  };
}
