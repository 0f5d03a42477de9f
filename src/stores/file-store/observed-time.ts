import { createHash, randomBytes } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { coalesced } from '#base/coalesced.ts';
import { isErrno } from '#base/errno.ts';
import { isFull, UnsuitableFile } from './files.ts';
import type { StoreRoot } from './store-root.ts';

/**
 * How long this instance has watched the store, over all its processes: what runs between two looks of one process is
 * counted by its own monotonic clock, and kept on the store. So it never runs faster than real time, whatever any
 * clock is set to. Time in which no process ran, in which a process did not look for long, or that was not saved before a
 * crash, does not count.
 *
 * The file belongs to the store and not to the state folder: the controller of a cluster drops that at each start, and a
 * store that was restored from a backup gets the time back that its trash entries had then.
 */
export interface ObservedTime {
  /** In ms. Looks at the file, since another process of this instance may have taken over. */
  now(): Promise<number>;
  /** The same, and saves it now and then. For maintenance: a full store is no error, the time is then saved later. */
  save(): Promise<number>;
}

interface LastCount {
  /** Of the file as it was last seen or written: another one after every write. Undefined: there is no file. */
  readonly mark: string | undefined;
  readonly value: number;
  readonly savedValue: number;
  /** By the monotonic clock. */
  readonly at: number;
}

const version = 1;
const limit = 4096;
const saveEveryMs = 60_000;
/**
 * The most that counts between two looks. Maintenance looks every 30 s. If nobody looked for longer, the process or its machine was
 * suspended, the store was unreachable, or the trash was empty: nobody observed that time. A server that was rolled back
 * meanwhile can have the same mark as before.
 */
const maxStepMs = 5 * 60_000;

export function createObservedTime(storeRoot: StoreRoot, clock: Clock): ObservedTime {
  const { files, context } = storeRoot;
  const name = createHash('sha256').update(context.instance).digest('hex').slice(0, 24);
  const path = storeRoot.ownPath('observed', name);
  let known: LastCount | undefined;
  let isSaving = false;
  let unsaved: unknown;

  async function stored(): Promise<Pick<LastCount, 'mark' | 'value'>> {
    try {
      return parse((await files.read(path, limit)).toString('utf8')) ?? nothing;
    } catch (cause) {
      if (isErrno(cause, 'ENOENT', 'ENOTDIR', 'ELOOP', 'ENXIO') || cause instanceof UnsuitableFile) return nothing;
      throw cause;
    }
  }

  async function write({ value }: LastCount): Promise<string> {
    const mark = randomBytes(8).toString('hex');
    const fresh = storeRoot.scratchPath();
    await files.makeFolder(storeRoot.ownPath('observed'));
    await files.writeNew(
      fresh,
      `${JSON.stringify({ version, instance: context.instance, elapsed: Math.floor(value), mark })}\n`,
    );
    await files.rename(fresh, path);
    return mark;
  }

  /** Time counts only while the file says what this process last knew: otherwise another process counted it already. */
  async function count(): Promise<LastCount> {
    const found = await stored();
    const at = clock.elapsed();
    if (known === undefined || known.mark !== found.mark) return { ...found, savedValue: found.value, at };
    return { ...known, value: known.value + Math.min(Math.max(0, at - known.at), maxStepMs), at };
  }

  // One at a time: a look must not fall between the two halves of a write.
  const look = coalesced(async () => {
    known = await count();
    const isDue = known.mark === undefined || known.value - known.savedValue >= saveEveryMs;
    const isWanted = isSaving;
    isSaving = false;
    if (!isWanted || !isDue) return;
    try {
      known = { ...known, mark: await write(known), savedValue: known.value };
      unsaved = undefined;
    } catch (cause) {
      unsaved = cause;
    }
  });

  const now = async (): Promise<number> => {
    await look();
    return Math.floor(known?.value ?? 0);
  };
  return {
    now,
    save: async () => {
      isSaving = true;
      const value = await now();
      if (unsaved !== undefined && !isFull(unsaved)) throw unsaved;
      return value;
    },
  };
}

const nothing = { mark: undefined, value: 0 };

function parse(text: string): Pick<LastCount, 'mark' | 'value'> | undefined {
  try {
    const json = JSON.parse(text) as Readonly<Record<string, unknown>> | null;
    const { elapsed, mark } = json ?? {};
    if (json?.['version'] !== version || !Number.isSafeInteger(elapsed) || typeof mark !== 'string') return undefined;
    return { mark, value: Math.max(0, Number(elapsed)) };
  } catch {
    return undefined;
  }
}
