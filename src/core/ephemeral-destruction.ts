import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import type { Deletions } from './deletion.ts';
import { type EphemeralRecord, type EphemeralRecords, requestIdOf } from './ephemeral-records.ts';
import { errorCodes } from './error-codes.ts';
import { stowageError } from './errors.ts';
import { ephemeralKey } from './lock-keys.ts';
import type { Volume } from './model.ts';
import { nameFor } from './names.ts';
import type { Operations } from './operations.ts';
import type { Records } from './ports.ts';
import type { Stores } from './stores.ts';

/** Destroys ephemeral volumes that were unpublished. */
export interface EphemeralDestruction {
  /** Returns false if the destruction failed; `Ephemerals.reconcile` retries it. */
  tryDestroy(record: EphemeralRecord, scope: Scope): Promise<boolean>;
  /** The volume was requested again, so a report that its store does not have it no longer counts. */
  noteRequest(key: string): void;
}

export interface EphemeralDestructionParts {
  readonly records: Pick<Records, 'volumes'>;
  readonly stores: Pick<Stores, 'use'>;
  readonly deletions: Pick<Deletions, 'delete'>;
  readonly operations: Pick<Operations, 'lock'>;
  readonly clock: Clock;
  readonly log: Log;
}

/** A server may carry out a delayed request even after it has answered a later one. */
const maxRequestDelayMs = 30_000;

export function createEphemeralDestruction(
  { records, stores, deletions, operations, clock, log }: EphemeralDestructionParts,
  ephemeralRecords: EphemeralRecords,
): EphemeralDestruction {
  /** Since when the store has reported that it does not have the volume, by this process's clock. */
  const absentSince = new Map<string, number>();

  /** If the answer to the create was lost, the store has the volume and our records do not. Throws if the store does not answer. */
  async function findUnrecorded({ key, store }: EphemeralRecord, scope: Scope): Promise<Volume | undefined> {
    const created = (await stores.use(store, (open) => open.get(nameFor(key), scope)))?.volume;
    if (created?.requestId !== requestIdOf(key)) return undefined;
    records.volumes.put(created);
    return created;
  }

  async function destroy(record: EphemeralRecord, scope: Scope): Promise<void> {
    using _ = await operations.lock([ephemeralKey(record.key)], scope.signal);
    if (ephemeralRecords.get(record.key)?.over !== true) return;
    const volume = ephemeralRecords.volumeOf(record) ?? (await findUnrecorded(record, scope));
    if (volume === undefined && !isPermanentlyAbsent(record.key)) return;
    try {
      if (volume !== undefined)
        await deletions.delete(
          volume.id,
          undefined,
          { ...scope, requestId: `${requestIdOf(record.key)}:end` },
          { destroy: true },
        );
    } catch (thrown) {
      if (stowageError(thrown).reason !== 'volume-unknown') throw thrown;
    }
    absentSince.delete(record.key);
    ephemeralRecords.forget(record.key);
  }

  function isPermanentlyAbsent(key: string): boolean {
    const since = absentSince.get(key) ?? clock.elapsed();
    absentSince.set(key, since);
    return clock.elapsed() - since >= maxRequestDelayMs;
  }

  async function tryDestroy(record: EphemeralRecord, scope: Scope): Promise<boolean> {
    try {
      await destroy(record, scope);
      return true;
    } catch (thrown) {
      const { message, code } = stowageError(thrown);
      const level = errorCodes[code].retry ? 'info' : 'warn';
      log[level]('an ephemeral volume that is no longer used could not be destroyed; retrying later', { why: message });
      return false;
    }
  }

  return { tryDestroy, noteRequest: (key) => void absentSince.delete(key) };
}
