import { eachBounded } from '#base/each-bounded.ts';
import type { Log, Scope } from '#base/log.ts';
import { adoptDeadlineMs } from './adoption.ts';
import type { Catalogue } from './catalogue.ts';
import { stowageError } from './errors.ts';
import { operationKeys } from './lock-keys.ts';
import type { Operation, StoreConfig } from './model.ts';
import { EndedOnRecord } from './operation-runner.ts';
import type { Outcome, Work } from './operation-work.ts';
import type { Operations } from './operations.ts';
import type { Records, Store } from './ports.ts';
import type { Replay } from './replay-attempts.ts';
import { storeNotConfigured } from './store-errors.ts';
import type { StoreIdentities } from './store-identity.ts';
import type { Stores } from './stores.ts';
import type { Step } from './volume-steps.ts';

const maxConcurrentReplays = 8;
const unending = new AbortController().signal;
/** These operations can take hours and do their own locking, so the store is usable meanwhile. */
const longDeadlineMs: Readonly<Record<string, number>> = { 'store.adopt': adoptDeadlineMs };

/** Recovers a store after it is opened and before it is used: replays interrupted operations, sweeps, refreshes the catalogue. */
export function createStoreRecovery(parts: {
  readonly records: Records;
  readonly operations: Operations;
  readonly catalogue: Catalogue;
  readonly steps: Readonly<Record<string, Step>>;
  readonly stores: () => Pick<Stores, 'list' | 'useInBackground'>;
  readonly log: Log;
  readonly identities: StoreIdentities;
  /** Changes when the machine reboots. Undefined: unknown, so every start counts as a reboot. */
  readonly boot: string | undefined;
}): (store: Store, config: StoreConfig, scope: Scope) => Promise<void> {
  const { records, operations, catalogue, steps, stores, log, identities, boot } = parts;

  /** One retry on the open store. Stops when the store is about to close, and is then repeated. */
  async function retryOnOpenStore({ id, store = '', kind, params }: Operation, work: Work): Promise<Outcome<unknown>> {
    // While the store is not configured, the operation waits: the administrator may configure it again.
    configOf(store);
    return await stores().useInBackground(store, (open, closing) => {
      // Recovery ended the operation while the store was opening, because its URI now points to another store, perhaps a copy with the same ids.
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

  /** Returns when the operation ended, or when it failed temporarily and is retried in the background. */
  async function replay(operation: Operation, scope: Scope, firstWork?: Replay['firstWork']): Promise<void> {
    const { id, kind, subject } = operation;
    log.info('replaying an interrupted operation', { operation: id, kind, subject });
    const deadlineMs = longDeadlineMs[kind];
    try {
      await operations.resume(operation, scope, {
        keys: operationKeys(operation),
        work: (work) => retryOnOpenStore(operation, work),
        ...(firstWork && { firstWork }),
        ...(deadlineMs !== undefined && { deadlineMs }),
      });
    } catch (thrown) {
      // The failure is recorded, and the store stays consistent: a failed step undoes itself, or the sweep finishes it.
      log.warn('the interrupted operation failed', { operation: id, why: stowageError(thrown).message });
    }
  }

  return async (store, config, scope) => {
    identities.forgetOtherLocation(config);
    // Skip the backoff of pending operations; their next attempt waits until this store is open.
    operations.wake(store.name);
    const unfinished = records.operations
      .listUnfinished()
      .filter((operation) => operation.store === store.name && operation.kind in steps);
    const [short, long] = [
      unfinished.filter(({ kind }) => !(kind in longDeadlineMs)),
      unfinished.filter(({ kind }) => kind in longDeadlineMs),
    ];
    await eachBounded(short, maxConcurrentReplays, (operation) =>
      replay(operation, scope, (work) => stepOf(operation.kind)(store, config, operation.params, work)),
    );
    await store.housekeeping?.sweep(scope);
    scope.signal.throwIfAborted();
    identities.remember(config, store);
    // Only a power cut can lose volume records, so compare thoroughly once per boot.
    const comparedKey = `compared ${store.name}`;
    await catalogue.refresh(store, scope, boot === undefined || records.settings.get(comparedKey) !== boot);
    if (boot !== undefined && records.settings.get(comparedKey) !== boot) records.settings.set(comparedKey, boot);
    for (const operation of long) void replay(operation, { log, signal: unending });
  };
}
