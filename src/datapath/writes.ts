import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { createSending, type SendingOptions, type Writer } from './background-writes.ts';
import { type Budget, costOf } from './budget.ts';
import type { Calls } from './calls.ts';
import type { Context } from './context.ts';
import type { Loss } from './data-loss-log.ts';
import type { Range } from './pieces.ts';
import type { Kept, Written } from './ports.ts';
import { until } from './unless-aborted.ts';
import { createWriteBehind } from './write-behind.ts';

type At = { readonly fh: number; readonly offset: number; readonly openFlags: number };

/** What is written, and whether it is on the server's disk. */
export interface Writes {
  write(id: number, at: At, data: Buffer, request: Request): number | Promise<number>;
  /** All of it is on the server's disk, or it throws what went wrong, once for each open file. */
  settle(id: number, fh: number, request: Request): Promise<void>;
  /** All of it is on the server's disk, or lost. Undefined: there is nothing. */
  flushed(id: number, request: Request): Promise<void> | undefined;
  /** Undefined: the server has answered every write so far (of the range), and its attributes are right. */
  settled(id: number, request: Request, range?: Range): Promise<void> | undefined;
  /** Where the file ends at least, by writes that the server has not answered. Undefined: it has answered all. */
  end(id: number): number | undefined;
  /** How often it was doubted whether the server still has what it answered: what was read meanwhile may lack some. */
  readonly doubts: number;
  opened(id: number, fh: number): void;
  closed(id: number, fh: number): Promise<void> | undefined;
  forget(id: number): void;
  readonly behind: Behind;
}

/** What the process has to do with writes that were answered and are not on the server's disk yet. */
export interface Behind {
  /** One that a predecessor had answered; in the order they were. */
  restore(written: Written): void;
  /** There is no memory for further requests. */
  hurry(): void;
  /** The server may have started anew. */
  doubt(): void;
  /** Resolves when everything written so far is on the server's disk, or lost. */
  flush(): Promise<void>;
  /** Nothing is sent or given up any more. Resolves when nothing is under way. */
  stop(): Promise<void>;
  /** With something that is not on the server's disk. */
  readonly files: number;
}

export interface WritesParts extends SendingOptions {
  readonly context: Context;
  readonly calls: Calls;
  /** Left out: nothing outlives this process, so nobody is answered before the server has it on its disk. */
  readonly kept: Kept | undefined;
  /** Every file is as if opened with O_SYNC. */
  readonly isSync: boolean;
  readonly budgets: readonly Budget[];
  /** The write that came at this place is on the server's disk, or lost. */
  readonly onDone?: (place: number) => void;
  readonly onLost?: ((loss: Loss) => void) | undefined;
}

/** Whoever opened a file like this wants to be told when it is on the disk, not before. */
const isThrough = constants.O_DIRECT | constants.O_SYNC | constants.O_DSYNC;

export function createWrites(parts: WritesParts): Writes {
  const { context, calls, kept, budgets } = parts;
  const { attributes, clock, nodes } = context;
  const sending = createSending(context, parts);
  /** Open files that know what of their node got lost. A successor tells it to all of them once more. */
  const told = new Map<number, Set<number>>();
  let isStopped = false;
  /** Requests that are not answered before their data are on the disk: their memory goes with the answer. */
  const waiting = new Set<number>();
  let doubts = 0;

  const behind = createWriteBehind<number, Writer>({
    ...{ clock, budgets, cost: costOf, send: sending.send, commit: sending.commit, keyOf: (id) => id },
    keep: (place) => {
      if (!waiting.has(place)) kept?.keep(place);
    },
    free: (place) => {
      parts.onDone?.(place);
      if (!waiting.delete(place)) kept?.free(place);
    },
    onLost: (id, { code }, lost) => {
      nodes.setLost(id, code);
      told.delete(id);
      const answered = lost.filter(({ place }) => !waiting.has(place));
      const bytes = answered.reduce((sum, { data }) => sum + data.length, 0);
      if (bytes > 0) parts.onLost?.({ id, fileId: attributes.last(id)?.fileId, code, bytes });
    },
  });

  function tell(id: number, fh: number, { resent }: Request): void {
    const lost = nodes.lost(id);
    if (lost === undefined || told.get(id)?.has(fh) === true) return;
    // The kernel may drop this reply, so don't mark the error as reported: reporting it twice is better than losing it.
    if (resent) throw new Errno(lost);
    know(id, fh);
    // Only when the answer is in the journal: killed before that, it is the successor's to tell.
    setImmediate(() => {
      // Unless more got lost since.
      if (told.get(id)?.has(fh) === true && !isStopped) nodes.setLossTold(id);
      settleLoss(id, 0);
    });
    throw new Errno(lost);
  }

  function know(id: number, fh: number): void {
    const known = told.get(id) ?? new Set();
    told.set(id, known.add(fh));
  }

  /** Unless there is somebody left who does not know. Of those who have it open, `spared` need not know. */
  function settleLoss(id: number, spared: number): void {
    const { opens = 0 } = nodes.get(id) ?? {};
    if (isStopped || (told.get(id)?.size ?? 0) < opens - spared) return;
    nodes.setLost(id, undefined);
    told.delete(id);
  }

  const waited = (request: Request, what: Promise<void> | undefined): Promise<void> | undefined =>
    what && calls.wait(request, (signal) => until(what, signal));

  const flushed = (id: number, request: Request): Promise<void> | undefined => waited(request, behind.flush(id));

  function accept(id: number, { fh, offset }: At, data: Buffer, request: Request): number | Promise<number> {
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

  async function through(id: number, at: At, data: Buffer, request: Request): Promise<number> {
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
    tell(id, at.fh, request);
    return data.length;
  }

  return {
    flushed,
    write: (id, at, data, request) => {
      tell(id, at.fh, request);
      if (data.length === 0) return 0;
      return kept === undefined || parts.isSync || (at.openFlags & isThrough) !== 0
        ? through(id, at, data, request)
        : accept(id, at, data, request);
    },
    settle: async (id, fh, request) => {
      await flushed(id, request);
      tell(id, fh, request);
    },
    settled: (id, request, range) => waited(request, behind.settled(id, range)),
    end: (id) => behind.end(id),
    get doubts() {
      return doubts;
    },
    opened: (id, fh) => {
      // Whoever wrote it may have been killed, and what he does next is to look whether it is there.
      if (nodes.lost(id) === undefined || !nodes.isLossTold(id)) return;
      settleLoss(id, 1);
      if (nodes.lost(id) !== undefined) know(id, fh);
    },
    closed: (id, fh) => {
      told.get(id)?.delete(fh);
      return behind.flush(id);
    },
    forget: (id) => {
      told.delete(id);
    },
    behind: {
      restore: ({ place, node, offset, data, ...who }) => behind.restore(node, { place, offset, data, who }),
      hurry: behind.hurry,
      doubt: () => {
        if (behind.files > 0) doubts++;
        behind.doubt();
      },
      flush: behind.flushAll,
      stop: () => {
        isStopped = true;
        return sending.stop();
      },
      get files() {
        return behind.files;
      },
    },
  };
}

const neverAborted = new AbortController().signal;
