import { eachBounded } from '#base/each-bounded.ts';
import type { Log, Scope } from '#base/log.ts';
import { adoptDeadlineMs } from './adoption.ts';
import type { Catalogue } from './catalogue.ts';
import { stowageError } from './errors.ts';
import { operationKeys } from './lock-keys.ts';
import type { Operation, StoreConfig } from './model.ts';
import type { Replay } from './operation-replays.ts';
import { EndedOnRecord } from './operation-runner.ts';
import type { Operations, Outcome, Work } from './operations.ts';
import type { Records, Store } from './ports.ts';
import { storeNotConfigured } from './store-errors.ts';
import type { StoreIdentities } from './store-identity.ts';
import type { Stores } from './stores.ts';
import type { Step } from './volume-steps.ts';

const inParallel = 8;
const unending = new AbortController().signal;
/** These can take hours, and lock what they work on themselves: the store is used meanwhile. */
const longDeadlineMs: Readonly<Record<string, number>> = { 'store.adopt': adoptDeadlineMs };

/** What happens to a store between being opened and being used: the past is brought in order. */
export function createStoreRecovery(parts: {
  readonly records: Records;
  readonly operations: Operations;
  readonly catalogue: Catalogue;
  readonly steps: Readonly<Record<string, Step>>;
  readonly stores: () => Pick<Stores, 'list' | 'useInBackground'>;
  readonly log: Log;
  readonly identities: StoreIdentities;
  /** Changes when the machine starts anew. Undefined: it cannot be told, so every start counts as one. */
  readonly boot: string | undefined;
}): (store: Store, config: StoreConfig, scope: Scope) => Promise<void> {
  const { records, operations, catalogue, steps, stores, log, identities, boot } = parts;

  /** A retry, when the store is open. It ends when the store is to be closed, and is repeated after that. */
  async function retried({ id, store = '', kind, params }: Operation, work: Work): Promise<Outcome<unknown>> {
    // As long as it is not configured the operation waits: the administrator may configure it again.
    configOf(store);
    return await stores().useInBackground(store, (open, closing) => {
      // Recovery ended the operation while the store was opening: its URI now points to another store, perhaps a copy with the same ids.
      if (records.operations.get(id)?.state !== 'running') throw new EndedOnRecord(id);
      const signal = AbortSignal.any([work.signal, closing]);
      return stepOf(kind)(open, configOf(store), params, { ...work, signal });
    });
  }

  function configOf(store: string): StoreConfig {
    const view = stores()
      .list()
      .find(({ config }) => config.name === store);
    if (view === undefined) throw storeNotConfigured(store);
    return view.config;
  }

  function stepOf(kind: string): Step {
    const step = steps[kind];
    if (step === undefined) throw new Error(`no step ${kind}`);
    return step;
  }

  /** Returns when it ended, or was refused for the moment. */
  async function replay(operation: Operation, scope: Scope, firstWork?: Replay['firstWork']): Promise<void> {
    const { id, kind, subject } = operation;
    log.info('taking up an interrupted operation', { operation: id, kind, subject });
    const deadlineMs = longDeadlineMs[kind];
    try {
      await operations.resume(operation, scope, {
        keys: operationKeys(operation),
        work: (work) => retried(operation, work),
        ...(firstWork && { firstWork }),
        ...(deadlineMs !== undefined && { deadlineMs }),
      });
    } catch (thrown) {
      // Its end is recorded as failed, and the store is in order: a failed step undoes itself or is finished by the sweep.
      log.warn('the interrupted operation failed', { operation: id, why: stowageError(thrown).message });
    }
  }

  return async (store, config, scope) => {
    identities.forgetOtherPlace(config);
    // Their next attempt waits until this store is open.
    operations.wake(store.name);
    const mine = records.operations
      .unfinished()
      .filter((operation) => operation.store === store.name && operation.kind in steps);
    const [short, long] = [
      mine.filter(({ kind }) => !(kind in longDeadlineMs)),
      mine.filter(({ kind }) => kind in longDeadlineMs),
    ];
    await eachBounded(short, inParallel, (operation) =>
      replay(operation, scope, (work) => stepOf(operation.kind)(store, config, operation.params, work)),
    );
    await store.housekeeping?.sweep(scope);
    scope.signal.throwIfAborted();
    identities.remember(config, store);
    // Only a power cut can take back what our records say of volumes, and it needs a new start of the machine.
    const compared = `compared ${store.name}`;
    await catalogue.refresh(store, scope, boot === undefined || records.settings.get(compared) !== boot);
    if (boot !== undefined && records.settings.get(compared) !== boot) records.settings.set(compared, boot);
    for (const operation of long) void replay(operation, { log, signal: unending });
  };
}
