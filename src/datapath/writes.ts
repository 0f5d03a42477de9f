import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { type BackgroundWritesOptions, createBackgroundWrites, type Writer } from './background-writes.ts';
import { type Budget, costOf } from './budget.ts';
import type { Calls } from './calls.ts';
import type { Context } from './context.ts';
import type { DataLoss } from './data-loss-log.ts';
import type { Range } from './pieces.ts';
import type { AcknowledgedWrite, JournaledWrites } from './ports.ts';
import { unlessAborted } from './unless-aborted.ts';
import { createWriteBehind } from './write-behind.ts';

type WritePosition = { readonly fh: number; readonly offset: number; readonly openFlags: number };

/** What is written, and whether it is on the server's disk. */
export interface Writes {
  write(id: number, at: WritePosition, data: Buffer, request: Request): number | Promise<number>;
  /** All of it is on the server's disk, or it throws what went wrong, once for each open file. */
  settle(id: number, fh: number, request: Request): Promise<void>;
  /** All of it is on the server's disk, or lost. Undefined: there is nothing. */
  flushed(id: number, request: Request): Promise<void> | undefined;
  /** Undefined: the server has answered every write so far (of the range), and its attributes are right. */
  settled(id: number, request: Request, range?: Range): Promise<void> | undefined;
  /** Where the file ends at least, by writes that the server has not answered. Undefined: it has answered all. */
  end(id: number): number | undefined;
  /** How often it was doubted whether the server still has what it answered: what was read meanwhile may lack some. */
  readonly revalidations: number;
  opened(id: number, fh: number): void;
  closed(id: number, fh: number): Promise<void> | undefined;
  forget(id: number): void;
  readonly behind: UncommittedWrites;
}

/** What the process has to do with writes that were answered and are not on the server's disk yet. */
export interface UncommittedWrites {
  /** One that a predecessor had answered; in the order they were. */
  restore(written: AcknowledgedWrite): void;
  /** There is no memory for further requests. */
  commitSoon(): void;
  /** The server may have started anew. */
  revalidate(): void;
  /** Resolves when everything written so far is on the server's disk, or lost. */
  flush(): Promise<void>;
  /** Nothing is sent or given up any more. Resolves when nothing is under way. */
  stop(): Promise<void>;
  /** With something that is not on the server's disk. */
  readonly files: number;
}

export interface WritesParts extends BackgroundWritesOptions {
  readonly context: Context;
  readonly calls: Calls;
  /** Left out: nothing outlives this process, so nobody is answered before the server has it on its disk. */
  readonly kept: JournaledWrites | undefined;
  /** Every file is as if opened with O_SYNC. */
  readonly isSync: boolean;
  readonly budgets: readonly Budget[];
  /** The write that came at this place is on the server's disk, or lost. */
  readonly onDone?: (place: number) => void;
  readonly onLost?: ((loss: DataLoss) => void) | undefined;
}

/** Whoever opened a file like this wants to be told when it is on the disk, not before. */
const syncFlags = constants.O_DIRECT | constants.O_SYNC | constants.O_DSYNC;

export function createWrites(parts: WritesParts): Writes {
  const { context, calls, kept, budgets } = parts;
  const { attributes, clock, nodes } = context;
  const background = createBackgroundWrites(context, parts);
  /** Open files that know what of their node got lost. A successor tells it to all of them once more. */
  const reported = new Map<number, Set<number>>();
  let isStopped = false;
  /** Requests that are not answered before their data are on the disk: their memory goes with the answer. */
  const waiting = new Set<number>();
  let revalidations = 0;

  const behind = createWriteBehind<number, Writer>({
    ...{ clock, budgets, cost: costOf, send: background.send, commit: background.commit, keyOf: (id) => id },
    keep: (place) => {
      if (!waiting.has(place)) kept?.keep(place);
    },
    free: (place) => {
      parts.onDone?.(place);
      if (!waiting.delete(place)) kept?.free(place);
    },
    onLost: (id, { code }, lost) => {
      nodes.setLost(id, code);
      reported.delete(id);
      const answered = lost.filter(({ place }) => !waiting.has(place));
      const bytes = answered.reduce((sum, { data }) => sum + data.length, 0);
      if (bytes > 0) parts.onLost?.({ id, fileId: attributes.last(id)?.fileId, code, bytes });
    },
  });

  function reportLoss(id: number, fh: number, { resent }: Request): void {
    const lost = nodes.lost(id);
    if (lost === undefined || reported.get(id)?.has(fh) === true) return;
    // The kernel may drop this reply, so don't mark the error as reported: reporting it twice is better than losing it.
    if (resent) throw new Errno(lost);
    markReported(id, fh);
    // Only when the answer is in the journal: killed before that, it is the successor's to tell.
    setImmediate(() => {
      // Unless more got lost since.
      if (reported.get(id)?.has(fh) === true && !isStopped) nodes.setLossTold(id);
      clearLossIfReported(id, 0);
    });
    throw new Errno(lost);
  }

  function markReported(id: number, fh: number): void {
    const known = reported.get(id) ?? new Set();
    reported.set(id, known.add(fh));
  }

  /** Unless there is somebody left who does not know. Of those who have it open, `spared` need not know. */
  function clearLossIfReported(id: number, spared: number): void {
    const { opens = 0 } = nodes.get(id) ?? {};
    if (isStopped || (reported.get(id)?.size ?? 0) < opens - spared) return;
    nodes.setLost(id, undefined);
    reported.delete(id);
  }

  const waitUnlessInterrupted = (request: Request, what: Promise<void> | undefined): Promise<void> | undefined =>
    what && calls.wait(request, (signal) => unlessAborted(what, signal));

  const flushed = (id: number, request: Request): Promise<void> | undefined =>
    waitUnlessInterrupted(request, behind.flush(id));

  function accept(id: number, { fh, offset }: WritePosition, data: Buffer, request: Request): number | Promise<number> {
    const { place, uid, gid } = request;
    const piece = { place, offset, data, who: { fh, uid, gid } };
    const taken = (length: number): number => {
      attributes.grew(id, offset + length);
      return length;
    };
    // Without a promise on the way: this is how nearly all writes go.
    if (behind.hasRoom(data.length)) return taken(behind.write(id, piece, neverAborted) as number);
    return calls.wait(request, async (signal) => taken(await behind.write(id, piece, signal)));
  }

  async function writeThrough(id: number, at: WritePosition, data: Buffer, request: Request): Promise<number> {
    const { place } = request;
    waiting.add(place);
    try {
      await accept(id, at, data, request);
    } catch (cause) {
      waiting.delete(place);
      throw cause;
    }
    try {
      await flushed(id, request);
    } finally {
      // Whoever waited was interrupted, and the data are on their way: their memory must stay.
      if (waiting.delete(place)) kept?.keep(place);
    }
    reportLoss(id, at.fh, request);
    return data.length;
  }

  return {
    flushed,
    write: (id, at, data, request) => {
      reportLoss(id, at.fh, request);
      if (data.length === 0) return 0;
      return kept === undefined || parts.isSync || (at.openFlags & syncFlags) !== 0
        ? writeThrough(id, at, data, request)
        : accept(id, at, data, request);
    },
    settle: async (id, fh, request) => {
      await flushed(id, request);
      reportLoss(id, fh, request);
    },
    settled: (id, request, range) => waitUnlessInterrupted(request, behind.settled(id, range)),
    end: (id) => behind.end(id),
    get revalidations() {
      return revalidations;
    },
    opened: (id, fh) => {
      // Whoever wrote it may have been killed, and what he does next is to look whether it is there.
      if (nodes.lost(id) === undefined || !nodes.isLossTold(id)) return;
      clearLossIfReported(id, 1);
      if (nodes.lost(id) !== undefined) markReported(id, fh);
    },
    closed: (id, fh) => {
      reported.get(id)?.delete(fh);
      return behind.flush(id);
    },
    forget: (id) => {
      reported.delete(id);
    },
    behind: {
      restore: ({ place, node, offset, data, ...who }) => behind.restore(node, { place, offset, data, who }),
      commitSoon: behind.commitSoon,
      revalidate: () => {
        if (behind.files > 0) revalidations++;
        behind.revalidate();
      },
      flush: behind.flushAll,
      stop: () => {
        isStopped = true;
        return background.stop();
      },
      get files() {
        return behind.files;
      },
    },
  };
}

const neverAborted = new AbortController().signal;
