import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';

/** Data of one WRITE, in memory that outlives this process. */
export interface Piece<W> {
  /** Where it lies in the journal. */
  readonly place: number;
  readonly offset: number;
  readonly data: Uint8Array;
  /** Whose data they are, to the server. */
  readonly who: W;
}

export interface Sent {
  /** The server has it on its disk already. */
  readonly isStable: boolean;
  readonly verifier: bigint;
}

export interface FileWritesParts<W> {
  readonly clock: Clock;
  /** Sends all of it. Tries again for as long as the store's options say; then throws an Errno. */
  readonly send: (piece: Piece<W>, how: { readonly stable: boolean }) => Promise<Sent>;
  readonly commit: (who: W) => Promise<{ readonly verifier: bigint }>;
  /** The data are on the server's disk, or lost. */
  readonly free: (piece: Piece<W>) => void;
  /** Nothing is left, not even a failure to be told. */
  readonly onIdle: () => void;
}

/** The writes of one file that were answered and are not on the server's disk yet. */
export interface FileWrites<W> {
  /** `isNew`: it is not one of a predecessor's, which nobody is going to close. */
  add(piece: Piece<W>, isNew: boolean): void;
  /** Undefined: the server has answered every write so far (of the range), and its attributes are right. */
  settled(range: Range | undefined): Promise<void> | undefined;
  /** Everything written so far is on the server's disk; or throws what became of it. */
  flush(): Promise<void>;
  /** Throws what became of earlier writes, to whoever asks first. */
  tell(): void;
  /** Puts on the disk what there is, without being asked. */
  hurry(): void;
}

export interface Range {
  readonly offset: number;
  readonly length: number;
}

interface Entry<W> extends Piece<W> {
  readonly order: number;
  state: 'waiting' | 'sending' | 'sent';
  verifier: bigint;
  /** It is on its way, and must go once more behind an earlier one that got lost. */
  isOvertaken: boolean;
}

/** WRITEs of one file that are under way at once. */
const mostAtOnce = 8;
/** How far ahead of what cannot go yet others are looked for that can. */
const farthest = 64;
/** A file of so few bytes is written by one call when it is closed; it waits so long for that. */
const smallest = 64 * 1024;
const holdBackMs = 30;
/** A server that starts anew each time we commit. */
const mostRounds = 16;

export function createFileWrites<W>(parts: FileWritesParts<W>): FileWrites<W> {
  const entries = new Set<Entry<W>>();
  /** Those of them that wait to be sent, in their order, and those that are on their way. */
  const queue: Entry<W>[] = [];
  const sending = new Set<Entry<W>>();
  let orders = 0;
  let failure: Errno | undefined;
  let isHeldBack = false;
  let committing: Promise<void> | undefined;
  let changed = Promise.withResolvers<void>();

  /** Wakes whoever waits. */
  function change(): void {
    changed.resolve();
    changed = Promise.withResolvers();
    if (entries.size === 0 && failure === undefined && committing === undefined) parts.onIdle();
  }

  function drop(entry: Entry<W>): void {
    if (entries.delete(entry)) parts.free(entry);
  }

  function fail(lost: Iterable<Entry<W>>, cause: unknown): void {
    failure ??= cause instanceof Errno ? cause : new Errno('EIO', cause);
    for (const entry of lost) drop(entry);
  }

  function start(entry: Entry<W>, how: { readonly stable: boolean }): void {
    entry.state = 'sending';
    sending.add(entry);
    parts
      .send(entry, how)
      .then(
        ({ isStable, verifier }) => {
          entry.state = 'sent';
          entry.verifier = verifier;
          if (entry.isOvertaken) again(entry);
          else if (isStable) drop(entry);
        },
        (cause: unknown) => fail([entry], cause),
      )
      .finally(() => {
        sending.delete(entry);
        send();
        change();
      });
  }

  /** In their order; those that overlap one after the other. */
  function send(): void {
    if (isHeldBack) return;
    const ahead = [...sending];
    for (let i = 0; i < queue.length && sending.size < mostAtOnce && ahead.length < farthest; ) {
      const entry = queue[i] as Entry<W>;
      const isFree = !ahead.some((one) => isOverlap(entry, { offset: one.offset, length: one.data.length }));
      ahead.push(entry);
      if (isFree) {
        queue.splice(i, 1);
        start(entry, { stable: false });
      } else i++;
    }
  }

  function letGo(): void {
    isHeldBack = false;
    send();
  }

  /** What was sent before and got lost comes before what is new. */
  function again(entry: Entry<W>): void {
    entry.state = 'waiting';
    entry.isOvertaken = false;
    const later = queue.findIndex(({ order }) => order > entry.order);
    queue.splice(later < 0 ? queue.length : later, 0, entry);
  }

  function commit(): Promise<void> {
    committing ??= committed().finally(() => {
      committing = undefined;
      send();
      change();
    });
    return committing;
  }

  /** The server puts on its disk what it has; what it lost by starting anew is sent again. */
  async function committed(): Promise<void> {
    const covered = [...entries].filter(({ state }) => state === 'sent');
    const [first] = covered;
    if (first === undefined) return;
    try {
      const { verifier } = await parts.commit(first.who);
      const lost = affected(covered.filter((entry) => entry.verifier !== verifier));
      for (const entry of covered) if (!lost.has(entry)) drop(entry);
      for (const entry of lost) {
        if (entry.state === 'sent') again(entry);
        else entry.isOvertaken = entry.state === 'sending';
      }
    } catch (cause) {
      fail(covered, cause);
    }
  }

  /** Those that got lost, and all later ones over the same bytes: sent again, the older would lie over the newer. */
  function affected(lost: readonly Entry<W>[]): ReadonlySet<Entry<W>> {
    const all = new Set(lost);
    if (all.size === 0) return all;
    for (const entry of entries) {
      const isLater = (one: Entry<W>): boolean =>
        one.order < entry.order && isOverlap(entry, { offset: one.offset, length: one.data.length });
      if (all.values().some(isLater)) all.add(entry);
    }
    return all;
  }

  /** Waits until no entry up to now is so. */
  async function none(is: (entry: Entry<W>) => boolean): Promise<void> {
    const last = orders;
    while (entries.values().some((entry) => entry.order <= last && is(entry))) await changed.promise;
  }

  /** A file of one small write goes with one call. */
  function sendLast(): void {
    const isAlone = isHeldBack && entries.size === 1;
    isHeldBack = false;
    const only = isAlone ? queue.pop() : undefined;
    if (only === undefined) send();
    else start(only, { stable: true });
  }

  async function flush(): Promise<void> {
    const last = orders;
    const isLeft = (): boolean => entries.values().some(({ order }) => order <= last);
    sendLast();
    for (let round = 0; isLeft(); round++) {
      if (round === mostRounds) {
        queue.length = 0;
        fail([...entries], new Errno('EIO'));
      }
      await none(({ state }) => state !== 'sent');
      // One that was begun earlier may not cover what was sent since.
      await committing;
      if (isLeft()) await commit();
    }
    tell();
  }

  function tell(): void {
    const told = failure;
    if (told === undefined) return;
    failure = undefined;
    change();
    throw told;
  }

  return {
    add: (piece, isNew) => {
      const isFirst = entries.size === 0;
      const entry: Entry<W> = { ...piece, order: ++orders, state: 'waiting', verifier: 0n, isOvertaken: false };
      entries.add(entry);
      queue.push(entry);
      if (!isNew || !isFirst || piece.data.length > smallest) {
        letGo();
        return;
      }
      isHeldBack = true;
      parts.clock.after(holdBackMs, () => {
        if (isHeldBack) letGo();
      });
    },
    settled: (range) => {
      const isOpen = (entry: Entry<W>): boolean =>
        entry.state !== 'sent' && (range === undefined || isOverlap(entry, range));
      if (!entries.values().some(isOpen)) return undefined;
      letGo();
      return none(isOpen);
    },
    flush,
    tell,
    hurry: () => {
      if (isHeldBack) letGo();
      if (entries.values().some(({ state }) => state === 'sent')) void commit();
    },
  };
}

const isOverlap = ({ offset, data }: Piece<unknown>, range: Range): boolean =>
  offset < range.offset + range.length && range.offset < offset + data.length;
