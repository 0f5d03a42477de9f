import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { isOverlap, type Piece, type Range, rangeOf, type Sent } from './pieces.ts';

/** What files of a mount were like lately: the next one is taken to be like them. */
export interface WritePattern {
  /** Whoever writes little to a file wants it on the disk right after. */
  isSingleSmallWrite: boolean;
}

export interface FileWritesParts<W> {
  readonly clock: Clock;
  readonly pattern: WritePattern;
  /** Sends all of it. Tries again for as long as the store's options say; then throws an Errno. */
  readonly send: (piece: Piece<W>, how: { readonly stable: boolean }) => Promise<Sent>;
  readonly commit: (who: W) => Promise<{ readonly verifier: bigint }>;
  /** The data are on the server's disk, or lost. */
  readonly free: (piece: Piece<W>) => void;
  readonly onLost: (cause: Errno, lost: readonly Piece<W>[]) => void;
  /** Nothing is left. */
  readonly onIdle: () => void;
}

/** The writes of one file that were answered and are not on the server's disk yet. */
export interface FileWrites<W> {
  /** `isNew`: it is not one of a predecessor's, which nobody is going to close. */
  add(piece: Piece<W>, isNew: boolean): void;
  /** Undefined: the server has answered every write so far (of the range), and its attributes are right. */
  settled(range: Range | undefined): Promise<void> | undefined;
  /** Everything written so far is on the server's disk, or lost. */
  flush(): Promise<void>;
  /** Puts on the disk what there is, without being asked. */
  commitSoon(): void;
  /** The server may have started anew, without what it had only in its memory: nobody may look before that is known. */
  revalidate(): void;
  /** Where the file ends at least, by what the server has not answered. Undefined: it has answered everything. */
  end(): number | undefined;
}

interface Entry<W> extends Piece<W> {
  readonly order: number;
  state: 'waiting' | 'sending' | 'sent';
  verifier: bigint;
  /** It is on its way, and must go once more behind an earlier one that got lost. */
  mustResend: boolean;
}

/** WRITEs of one file that are under way at once. */
const maxInFlight = 8;
/** How far ahead of what cannot go yet others are looked for that can. */
const maxLookahead = 64;
/** A file of so few bytes is written by one call when it is closed; it waits so long for that. */
const smallFileBytes = 64 * 1024;
const sendDelayMs = 30;
/** A server that has lost data so often is asked to put each write on its disk at once. */
const maxLosses = 3;

export function createFileWrites<W>(parts: FileWritesParts<W>): FileWrites<W> {
  const entries = new Set<Entry<W>>();
  /** Those of them that wait to be sent, in their order, and those that are on their way. */
  const queue: Entry<W>[] = [];
  const sending = new Set<Entry<W>>();
  let orders = 0;
  let losses = 0;
  let isDelayed = false;
  /** Sent before anybody asked for it, by habit. */
  let speculative: Entry<W> | undefined;
  /** Somebody waits for room: it is to be committed as soon as there is anything to commit, until that has given some. */
  let isCommitUrgent = false;
  let committing: Promise<void> | undefined;
  let verifying: Promise<void> | undefined;
  let changed = Promise.withResolvers<void>();

  /** Wakes whoever waits. */
  function change(): void {
    changed.resolve();
    changed = Promise.withResolvers();
    if (entries.size === 0 && committing === undefined) parts.onIdle();
  }

  function drop(entry: Entry<W>): void {
    if (entries.delete(entry)) parts.free(entry);
  }

  function fail(lost: readonly Entry<W>[], cause: unknown): void {
    // In this order: killed in between, a successor sends them once more, and it is told all the same.
    parts.onLost(cause instanceof Errno ? cause : new Errno('EIO', cause), lost);
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
          // Nobody has asked for it yet: it might have been part of something larger.
          if (entry === speculative) endSpeculation();
          if (entry.mustResend) requeue(entry);
          // An earlier one over the same bytes may have to be sent again: then this one must follow it.
          else if (isStable && !isBehindAnother(entries, entry)) drop(entry);
        },
        (cause: unknown) => {
          if (entry === speculative) endSpeculation();
          fail([entry], cause);
        },
      )
      .finally(() => {
        sending.delete(entry);
        advance();
      });
  }

  /** In their order; those that overlap one after the other. */
  function send(): void {
    if (isDelayed) return;
    const ahead = [...sending];
    for (let i = 0; i < queue.length && sending.size < maxInFlight && ahead.length < maxLookahead; ) {
      const entry = queue[i] as Entry<W>;
      const isFree = !ahead.some((one) => isOverlap(entry, rangeOf(one)));
      ahead.push(entry);
      if (isFree) {
        queue.splice(i, 1);
        start(entry, { stable: losses >= maxLosses });
      } else i++;
    }
  }

  function sendDelayed(): void {
    isDelayed = false;
    send();
  }

  /** What was sent before and got lost comes before what is new. */
  function requeue(entry: Entry<W>): void {
    entry.state = 'waiting';
    entry.mustResend = false;
    const later = queue.findIndex(({ order }) => order > entry.order);
    queue.splice(later < 0 ? queue.length : later, 0, entry);
  }

  function advance(): void {
    send();
    if (isCommitUrgent && isAnySent()) void commit();
    change();
  }

  function commit(): Promise<void> {
    committing ??= runCommit().finally(() => {
      committing = undefined;
      advance();
    });
    return committing;
  }

  /** The server puts on its disk what it has; what it lost by starting anew is sent again. */
  async function runCommit(): Promise<void> {
    const covered = [...entries].filter(({ state }) => state === 'sent');
    const [first] = covered;
    if (first === undefined) return;
    const wasCommitUrgent = isCommitUrgent;
    isCommitUrgent = false;
    try {
      const { verifier } = await parts.commit(first.who);
      const lost = withLaterOverlaps(
        entries,
        covered.filter((entry) => entry.verifier !== verifier),
      );
      if (lost.size > 0) {
        losses++;
        // Who waits for room is woken by room only, and this has perhaps given none.
        isCommitUrgent ||= wasCommitUrgent;
      }
      for (const entry of covered) if (!lost.has(entry)) drop(entry);
      for (const entry of lost) {
        if (entry.state === 'sent') requeue(entry);
        else entry.mustResend = entry.state === 'sending';
      }
    } catch (cause) {
      fail(covered, cause);
    }
  }

  /** Waits until no entry up to now is so. */
  async function waitUntilNone(is: (entry: Entry<W>) => boolean): Promise<void> {
    const last = orders;
    while (entries.values().some((entry) => entry.order <= last && is(entry))) await changed.promise;
  }

  /** A file of one small write goes with one call. */
  function sendPending(): void {
    const isSingleSmallWrite = isDelayed && entries.size === 1;
    speculative = undefined;
    isDelayed = false;
    parts.pattern.isSingleSmallWrite ||= isSingleSmallWrite;
    if (isSingleSmallWrite) sendStable();
    else send();
  }

  function endSpeculation(): void {
    parts.pattern.isSingleSmallWrite = false;
    speculative = undefined;
  }

  function sendStable(): void {
    const only = queue.pop();
    if (only !== undefined) start(only, { stable: true });
  }

  async function flush(): Promise<void> {
    const last = orders;
    const isLeft = (): boolean => entries.values().some(({ order }) => order <= last);
    sendPending();
    while (isLeft()) {
      await waitUntilNone(({ state }) => state !== 'sent');
      // One that was begun earlier may not cover what was sent since.
      await committing;
      if (isLeft()) await commit();
    }
  }

  const isAnySent = (): boolean => entries.values().some(({ state }) => state === 'sent');

  /** One that was begun earlier may have been answered by a server that is no more. */
  async function verify(): Promise<void> {
    await committing;
    await commit();
  }

  return {
    add: (piece, isNew) => {
      const isFirst = entries.size === 0;
      const entry: Entry<W> = { ...piece, order: ++orders, state: 'waiting', verifier: 0n, mustResend: false };
      entries.add(entry);
      queue.push(entry);
      if (!isNew || !isFirst || piece.data.length > smallFileBytes) {
        if (speculative !== undefined) endSpeculation();
        sendDelayed();
        return;
      }
      // While the server works on it, the application gets its answer and comes back to close the file.
      if (parts.pattern.isSingleSmallWrite) {
        speculative = entry;
        sendStable();
        return;
      }
      isDelayed = true;
      parts.clock.after(sendDelayMs, () => {
        if (isDelayed && queue[0] === entry) sendDelayed();
      });
    },
    settled: (range) => {
      const isOpen = (entry: Entry<W>): boolean =>
        entry.state !== 'sent' && (range === undefined || isOverlap(entry, range));
      if (verifying === undefined && !entries.values().some(isOpen)) return undefined;
      sendDelayed();
      return verifying === undefined ? waitUntilNone(isOpen) : verifying.then(() => waitUntilNone(isOpen));
    },
    flush,
    commitSoon: () => {
      isCommitUrgent = true;
      if (isDelayed) sendDelayed();
      if (isAnySent() && committing === undefined) void commit();
    },
    revalidate: () => {
      if (!isAnySent()) return;
      const current = verify().finally(() => {
        if (verifying === current) verifying = undefined;
      });
      verifying = current;
    },
    end: () => endOf(entries),
  };
}

/** Of those that the server has not answered. */
function endOf<W>(entries: Iterable<Entry<W>>): number | undefined {
  let end: number | undefined;
  for (const { state, offset, data } of entries) if (state !== 'sent') end = Math.max(end ?? 0, offset + data.length);
  return end;
}

function isBehindAnother<W>(entries: Iterable<Entry<W>>, entry: Entry<W>): boolean {
  for (const one of entries) {
    if (one === entry) return false;
    if (isOverlap(one, rangeOf(entry))) return true;
  }
  return false;
}

/** Those that got lost, and all later ones over the same bytes: sent again, the older would lie over the newer. */
function withLaterOverlaps<W>(entries: Iterable<Entry<W>>, lost: readonly Entry<W>[]): ReadonlySet<Entry<W>> {
  const all = new Set(lost);
  if (all.size === 0) return all;
  for (const entry of entries) {
    const isLater = (one: Entry<W>): boolean => one.order < entry.order && isOverlap(entry, rangeOf(one));
    if (all.values().some(isLater)) all.add(entry);
  }
  return all;
}
