import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { isOverlap, type Piece, type Range, rangeOf, type SendResult } from './pieces.ts';

/** The write pattern of recent files of a mount; the next file is assumed to follow it. */
export interface WritePattern {
  /** Files are written by one small write and then closed. */
  isSingleSmallWrite: boolean;
}

export interface FileWritesParts<W> {
  readonly clock: Clock;
  readonly pattern: WritePattern;
  /** Sends the whole piece. Retries as the mount options say; then throws an Errno. */
  readonly send: (piece: Piece<W>, options: { readonly stable: boolean }) => Promise<SendResult>;
  readonly commit: (writer: W) => Promise<{ readonly verifier: bigint }>;
  /** Called when the data are on the server's disk or lost. */
  readonly free: (piece: Piece<W>) => void;
  readonly onLost: (cause: Errno, lost: readonly Piece<W>[]) => void;
  /** Called when no write is left. */
  readonly onIdle: () => void;
}

/** The acknowledged writes of one file that are not on the server's disk yet. */
export interface FileWrites<W> {
  /** `isNew`: false for a predecessor's write, whose file no process will close. */
  add(piece: Piece<W>, isNew: boolean): void;
  /**
   * Resolves when the server has answered every write so far (of the range) and its attributes are right. Undefined:
   * there is nothing to wait for.
   */
  waitUntilAnswered(range: Range | undefined): Promise<void> | undefined;
  /** Resolves when everything written so far is on the server's disk or lost. */
  flush(): Promise<void>;
  /** Commits early to free memory. */
  commitSoon(): void;
  /**
   * The server may have restarted without its uncommitted data: commit to compare verifiers, and block readers until
   * then.
   */
  revalidate(): void;
  /** The minimum size by unanswered writes. Undefined: all are answered. */
  unansweredEnd(): number | undefined;
}

interface Entry<W> extends Piece<W> {
  readonly order: number;
  state: 'waiting' | 'sending' | 'sent';
  verifier: bigint;
  /** In flight, and must be resent after an earlier overlapping write that was lost. */
  mustResend: boolean;
}

/** WRITEs of one file in flight. */
const maxWritesInFlight = 8;
/** How many blocked entries to look past for one that can be sent. */
const maxBlockedEntries = 64;
/** A file of at most this size is written by one call on close. Its write waits for the close for `sendDelayMs`. */
const smallFileBytes = 64 * 1024;
const sendDelayMs = 30;
/** A server that lost data this often gets FILE_SYNC writes. */
const maxLosses = 3;

export function createFileWrites<W>(parts: FileWritesParts<W>): FileWrites<W> {
  const entries = new Set<Entry<W>>();
  /** Entries waiting to be sent, in order, and those in flight. */
  const queue: Entry<W>[] = [];
  const sending = new Set<Entry<W>>();
  let lastOrder = 0;
  let losses = 0;
  let isDelayed = false;
  /** Sent as FILE_SYNC speculatively, by the write pattern. */
  let speculative: Entry<W> | undefined;
  /** A writer waits for memory: commit as soon as possible, until a commit has freed memory. */
  let isCommitUrgent = false;
  let committing: Promise<void> | undefined;
  let verifying: Promise<void> | undefined;
  let changed = Promise.withResolvers<void>();

  /** Wakes waiters. */
  function wakeWaiters(): void {
    changed.resolve();
    changed = Promise.withResolvers();
    if (entries.size === 0 && committing === undefined) parts.onIdle();
  }

  function drop(entry: Entry<W>): void {
    if (entries.delete(entry)) parts.free(entry);
  }

  function fail(lost: readonly Entry<W>[], cause: unknown): void {
    // In this order: after a crash in between, a successor resends the data, and the error is still reported.
    parts.onLost(cause instanceof Errno ? cause : new Errno('EIO', cause), lost);
    for (const entry of lost) drop(entry);
  }

  function sendEntry(entry: Entry<W>, options: { readonly stable: boolean }): void {
    entry.state = 'sending';
    sending.add(entry);
    parts
      .send(entry, options)
      .then(
        ({ isStable, verifier }) => {
          entry.state = 'sent';
          entry.verifier = verifier;
          // The write was not flushed yet: it might have been part of a larger write.
          if (entry === speculative) endSpeculation();
          if (entry.mustResend) requeue(entry);
          // An earlier overlapping write may have to be resent, and this one after it.
          else if (isStable && !overlapsEarlier(entries, entry)) drop(entry);
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

  /** Sends in order; overlapping writes one after the other. */
  function sendQueued(): void {
    if (isDelayed) return;
    const earlier = [...sending];
    for (let i = 0; i < queue.length && sending.size < maxWritesInFlight && earlier.length < maxBlockedEntries; ) {
      const entry = queue[i] as Entry<W>;
      const isFree = !earlier.some((one) => isOverlap(entry, rangeOf(one)));
      earlier.push(entry);
      if (isFree) {
        queue.splice(i, 1);
        sendEntry(entry, { stable: losses >= maxLosses });
      } else i++;
    }
  }

  function sendDelayed(): void {
    isDelayed = false;
    sendQueued();
  }

  /** Lost writes are resent before newer ones. */
  function requeue(entry: Entry<W>): void {
    entry.state = 'waiting';
    entry.mustResend = false;
    const laterIndex = queue.findIndex(({ order }) => order > entry.order);
    queue.splice(laterIndex < 0 ? queue.length : laterIndex, 0, entry);
  }

  function advance(): void {
    sendQueued();
    if (isCommitUrgent && isAnySent()) void commit();
    wakeWaiters();
  }

  function commit(): Promise<void> {
    committing ??= runCommit().finally(() => {
      committing = undefined;
      advance();
    });
    return committing;
  }

  /** Commits. Writes that the server lost by a restart are resent. */
  async function runCommit(): Promise<void> {
    const covered = [...entries].filter(({ state }) => state === 'sent');
    const [first] = covered;
    if (first === undefined) return;
    const wasCommitUrgent = isCommitUrgent;
    isCommitUrgent = false;
    try {
      const { verifier } = await parts.commit(first.writer);
      const lost = withLaterOverlaps(
        entries,
        covered.filter((entry) => entry.verifier !== verifier),
      );
      if (lost.size > 0) {
        losses++;
        // Writers that wait for memory are woken only by freed memory, and this may have freed none.
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

  /** Waits until no current entry matches. */
  async function waitUntilNone(matches: (entry: Entry<W>) => boolean): Promise<void> {
    const last = lastOrder;
    while (entries.values().some((entry) => entry.order <= last && matches(entry))) await changed.promise;
  }

  /** Sends a file of one small write with a single FILE_SYNC call. */
  function sendPending(): void {
    const isSingleSmallWrite = isDelayed && entries.size === 1;
    speculative = undefined;
    isDelayed = false;
    parts.pattern.isSingleSmallWrite ||= isSingleSmallWrite;
    if (isSingleSmallWrite) sendStable();
    else sendQueued();
  }

  function endSpeculation(): void {
    parts.pattern.isSingleSmallWrite = false;
    speculative = undefined;
  }

  function sendStable(): void {
    const only = queue.pop();
    if (only !== undefined) sendEntry(only, { stable: true });
  }

  async function flush(): Promise<void> {
    const last = lastOrder;
    const isLeft = (): boolean => entries.values().some(({ order }) => order <= last);
    sendPending();
    while (isLeft()) {
      await waitUntilNone(({ state }) => state !== 'sent');
      // A COMMIT that started earlier may not cover later writes.
      await committing;
      if (isLeft()) await commit();
    }
  }

  const isAnySent = (): boolean => entries.values().some(({ state }) => state === 'sent');

  /** A COMMIT that started earlier may have been answered before the restart. */
  async function verify(): Promise<void> {
    await committing;
    await commit();
  }

  return {
    add: (piece, isNew) => {
      const isFirst = entries.size === 0;
      const entry: Entry<W> = { ...piece, order: ++lastOrder, state: 'waiting', verifier: 0n, mustResend: false };
      entries.add(entry);
      queue.push(entry);
      if (!isNew || !isFirst || piece.data.length > smallFileBytes) {
        if (speculative !== undefined) endSpeculation();
        sendDelayed();
        return;
      }
      // The application gets its answer and closes the file while the server works.
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
    waitUntilAnswered: (range) => {
      const isUnanswered = (entry: Entry<W>): boolean =>
        entry.state !== 'sent' && (range === undefined || isOverlap(entry, range));
      if (verifying === undefined && !entries.values().some(isUnanswered)) return undefined;
      sendDelayed();
      return verifying === undefined ? waitUntilNone(isUnanswered) : verifying.then(() => waitUntilNone(isUnanswered));
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
    unansweredEnd: () => unansweredEndOf(entries),
  };
}

/** End of the unanswered writes. */
function unansweredEndOf<W>(entries: Iterable<Entry<W>>): number | undefined {
  let end: number | undefined;
  for (const { state, offset, data } of entries) if (state !== 'sent') end = Math.max(end ?? 0, offset + data.length);
  return end;
}

function overlapsEarlier<W>(entries: Iterable<Entry<W>>, entry: Entry<W>): boolean {
  for (const one of entries) {
    if (one === entry) return false;
    if (isOverlap(one, rangeOf(entry))) return true;
  }
  return false;
}

/** Lost writes, and all later ones over the same bytes: a resent older write must not overwrite a newer one. */
function withLaterOverlaps<W>(entries: Iterable<Entry<W>>, lost: readonly Entry<W>[]): ReadonlySet<Entry<W>> {
  const all = new Set(lost);
  if (all.size === 0) return all;
  for (const entry of entries) {
    const isLater = (one: Entry<W>): boolean => one.order < entry.order && isOverlap(entry, rangeOf(one));
    if (all.values().some(isLater)) all.add(entry);
  }
  return all;
}
