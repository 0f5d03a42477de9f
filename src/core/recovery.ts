import type { Log, Scope } from '#base/log.ts';
import type { Catalogue } from './catalogue.ts';
import { errorCodes, stowageError } from './errors.ts';
import type { Operation, StoreConfig } from './model.ts';
import type { Operations } from './operations.ts';
import type { Records, Store } from './ports.ts';
import type { Identities } from './store-identity.ts';
import type { Step } from './volume-steps.ts';

/** What happens to a store between being opened and being used: the past is brought in order. */
export function createRecovery(parts: {
  readonly records: Records;
  readonly operations: Operations;
  readonly catalogue: Catalogue;
  readonly steps: Readonly<Record<string, Step>>;
  readonly log: Log;
  readonly identities: Identities;
  /** Changes when the machine starts anew. Undefined: it cannot be told, so every start counts as one. */
  readonly boot: string | undefined;
}): (store: Store, config: StoreConfig, scope: Scope) => Promise<void> {
  const { records, operations, catalogue, steps, log, identities, boot } = parts;

  async function replay(operation: Operation, store: Store, config: StoreConfig, scope: Scope): Promise<void> {
    const step = steps[operation.kind];
    if (step === undefined) return;
    log.info('taking up an interrupted operation', {
      operation: operation.id,
      kind: operation.kind,
      subject: operation.subject,
    });
    try {
      await operations.resume(operation, scope, (work) => step(store, config, operation.params, work));
    } catch (thrown) {
      const failure = stowageError(thrown);
      // Its end is recorded as failed, and the store is in order: a failed step undoes itself or is finished by the sweep.
      log.warn('the interrupted operation failed', { operation: operation.id, why: failure.message });
      if (errorCodes[failure.code].retry) throw failure;
    }
  }

  return async (store, config, scope) => {
    identities.forgetOtherPlace(config);
    const mine = records.operations
      .unfinished()
      .filter((operation) => operation.store === store.name && operation.kind in steps);
    for (const operation of mine) await replay(operation, store, config, scope);
    await store.sweep(scope);
    scope.signal.throwIfAborted();
    identities.remember(config, store);
    // Only a power cut can take back what our records say of volumes, and it needs a new start of the machine.
    const compared = `compared ${store.name}`;
    await catalogue.refresh(store, scope, boot === undefined || records.settings.get(compared) !== boot);
    if (boot !== undefined && records.settings.get(compared) !== boot) records.settings.set(compared, boot);
  };
}
