import { createHash, randomBytes } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { coalesce } from '#base/coalesce.ts';
import { isErrno } from '#base/errno.ts';
import { isFull, UnsuitableFile } from './files.ts';
import type { StoreRoot } from './store-root.ts';

/**
 * The time for which this instance, with all its processes, has observed the store. Each process measures the time between two observations with
 * its monotonic clock and saves the sum on the store, so the count never runs faster than real time, whatever any clock is set to. Time does
 * not count if no process ran, if a process did not observe the store for long, or if a crash came before it was saved.
 *
 * The file is on the store and not in the state folder: the controller of a cluster drops its state folder at each start, and restoring a
 * store from a backup also restores the count that belongs to its trash entries.
 */
export interface ObservedTime {
  /** In ms. Reads the file, since another process of this instance may have taken over. */
  now(): Promise<number>;
  /** Like `now`, and saves the count once a minute. For maintenance. A full store is no error: a later call saves the count. */
  save(): Promise<number>;
}

interface LastCount {
  /** Identifies the last write of the file, by us or by another process. Undefined: there is no file. */
  readonly mark: string | undefined;
  readonly value: number;
  readonly savedValue: number;
  /** When it was counted, by the monotonic clock. */
  readonly countedAt: number;
}

const formatVersion = 1;
const maxFileBytes = 4096;
const saveIntervalMs = 60_000;
/**
 * The most that counts between two observations. Maintenance observes every 30 s. A longer gap means that the process or its machine was
 * suspended, the store was unreachable, or the trash was empty: this instance did not observe that time. The server may have been rolled back
 * in the gap and still show the same mark.
 */
const maxStepMs = 5 * 60_000;

export function createObservedTime(storeRoot: StoreRoot, clock: Clock): ObservedTime {
  const { files, context } = storeRoot;
  const name = createHash('sha256').update(context.instance).digest('hex').slice(0, 24);
  const path = storeRoot.ownPath('observed', name);
  let known: LastCount | undefined;
  let isSaveRequested = false;
  let saveError: unknown;

  async function readStored(): Promise<Pick<LastCount, 'mark' | 'value'>> {
    try {
      return parse((await files.read(path, maxFileBytes)).toString('utf8')) ?? noCount;
    } catch (cause) {
      if (isErrno(cause, 'ENOENT', 'ENOTDIR', 'ELOOP', 'ENXIO') || cause instanceof UnsuitableFile) return noCount;
      throw cause;
    }
  }

  async function write({ value }: LastCount): Promise<string> {
    const mark = randomBytes(8).toString('hex');
    const fresh = storeRoot.scratchPath();
    await files.makeFolder(storeRoot.ownPath('observed'));
    await files.writeNew(
      fresh,
      `${JSON.stringify({ version: formatVersion, instance: context.instance, elapsed: Math.floor(value), mark })}\n`,
    );
    await files.rename(fresh, path);
    return mark;
  }

  /** Time counts only if the file is unchanged since our last observation. Otherwise another process has already counted it. */
  async function count(): Promise<LastCount> {
    const found = await readStored();
    const countedAt = clock.elapsed();
    if (known === undefined || known.mark !== found.mark) return { ...found, savedValue: found.value, countedAt };
    return { ...known, value: known.value + Math.min(Math.max(0, countedAt - known.countedAt), maxStepMs), countedAt };
  }

  // One at a time: an observation must not fall between the write of the file and the update of `known`.
  const observe = coalesce(async () => {
    known = await count();
    const isDue = known.mark === undefined || known.value - known.savedValue >= saveIntervalMs;
    const shouldSave = isSaveRequested;
    isSaveRequested = false;
    if (!shouldSave || !isDue) return;
    try {
      known = { ...known, mark: await write(known), savedValue: known.value };
      saveError = undefined;
    } catch (cause) {
      saveError = cause;
    }
  });

  const now = async (): Promise<number> => {
    await observe();
    return Math.floor(known?.value ?? 0);
  };
  return {
    now,
    save: async () => {
      isSaveRequested = true;
      const value = await now();
      if (saveError !== undefined && !isFull(saveError)) throw saveError;
      return value;
    },
  };
}

const noCount = { mark: undefined, value: 0 };

function parse(text: string): Pick<LastCount, 'mark' | 'value'> | undefined {
  try {
    const json = JSON.parse(text) as Readonly<Record<string, unknown>> | null;
    const { elapsed, mark } = json ?? {};
    if (json?.['version'] !== formatVersion || !Number.isSafeInteger(elapsed) || typeof mark !== 'string')
      return undefined;
    return { mark, value: Math.max(0, Number(elapsed)) };
  } catch {
    return undefined;
  }
}
