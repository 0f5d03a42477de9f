import { constants } from 'node:fs';
import { unlessAborted } from '#base/aborted.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { type BackgroundWritesOptions, createBackgroundWrites, type Writer } from './background-writes.ts';
import { type Budget, costOf } from './budget.ts';
import type { Calls } from './calls.ts';
import type { Context } from './context.ts';
import type { DataLoss } from './data-loss-log.ts';
import { createLossReports } from './loss-reports.ts';
import type { Range } from './pieces.ts';
import type { AcknowledgedWrite, JournaledWrites } from './ports.ts';
import { createWriteBehind } from './write-behind.ts';

type WritePosition = { readonly fh: number; readonly offset: number; readonly openFlags: number };

/** Writes of a mount and their state on the server. */
export interface Writes {
  write(id: number, at: WritePosition, data: Buffer, request: Request): number | Promise<number>;
  /** Waits until everything is on the server's disk; throws a loss once per open file. */
  settle(id: number, fh: number, request: Request): Promise<void>;
  /** Resolves when everything is on the server's disk or lost. Undefined: there is nothing. */
  flushed(id: number, request: Request): Promise<void> | undefined;
  /**
   * Resolves when the server has answered every write so far (of the range) and its attributes are right. Undefined:
   * there is nothing to wait for.
   */
  settled(id: number, request: Request, range?: Range): Promise<void> | undefined;
  /** The minimum size by unanswered writes. Undefined: all are answered. */
  end(id: number): number | undefined;
  /** Counts possible server restarts: data read meanwhile may be incomplete. */
  readonly revalidations: number;
  opened(id: number, fh: number): void;
  closed(id: number, fh: number): Promise<void> | undefined;
  forget(id: number): void;
  readonly behind: UncommittedWrites;
}

/** Process-wide handling of acknowledged writes that are not on the server's disk yet. */
export interface UncommittedWrites {
  /** Restores a predecessor's acknowledged write; call in its order. */
  restore(written: AcknowledgedWrite): void;
  /** There is no memory for more requests: commit. */
  commitSoon(): void;
  /** The server may have restarted: verify what it has. */
  revalidate(): void;
  /** Resolves when everything written so far is on the server's disk or lost. */
  flush(): Promise<void>;
  /** Stops sending and giving up. Resolves when no call is in flight. */
  stop(): Promise<void>;
  /** Number of files with data that are not on the server's disk. */
  readonly files: number;
}

export interface WritesParts extends BackgroundWritesOptions {
  readonly context: Context;
  readonly calls: Calls;
  /** Undefined: nothing outlives this process, so a write is answered only when it is on the server's disk. */
  readonly journal: JournaledWrites | undefined;
  /** Treats every file as opened with O_SYNC. */
  readonly isSync: boolean;
  readonly budgets: readonly Budget[];
  /** The write at this place is on the server's disk or lost. */
  readonly onDone?: (place: number) => void;
  readonly onLost?: ((loss: DataLoss) => void) | undefined;
}

/** Files opened with these flags are answered when the data are on disk. */
const syncFlags = constants.O_DIRECT | constants.O_SYNC | constants.O_DSYNC;

export function createWrites(parts: WritesParts): Writes {
  const { context, calls, journal, budgets } = parts;
  const { attributes, clock, nodes } = context;
  const background = createBackgroundWrites(context, parts);
  const losses = createLossReports(nodes);
  /** Places of synchronous requests: their memory is freed with the answer. */
  const waiting = new Set<number>();
  let revalidations = 0;

  const behind = createWriteBehind<number, Writer>({
    clock,
    budgets,
    cost: costOf,
    send: background.send,
    commit: background.commit,
    keyOf: (id) => id,
    keep: (place) => {
      if (!waiting.has(place)) journal?.keep(place);
    },
    free: (place) => {
      parts.onDone?.(place);
      if (!waiting.delete(place)) journal?.free(place);
    },
    onLost: (id, { code }, lost) => {
      losses.add(id, code);
      const bytes = totalBytes(lost.filter(({ place }) => !waiting.has(place)));
      if (bytes > 0) parts.onLost?.({ id, fileId: attributes.last(id)?.fileId, code, bytes });
    },
  });

  const waitUnlessInterrupted = (request: Request, what: Promise<void> | undefined): Promise<void> | undefined =>
    what && calls.wait(request, (signal) => unlessAborted(what, signal));

  const flushed = (id: number, request: Request): Promise<void> | undefined =>
    waitUnlessInterrupted(request, behind.flush(id));

  function accept(id: number, { fh, offset }: WritePosition, data: Buffer, request: Request): number | Promise<number> {
    const { slot: place, uid, gid } = request;
    const piece = { place, offset, data, writer: { fh, uid, gid } };
    const taken = (length: number): number => {
      attributes.grew(id, offset + length);
      return length;
    };
    // Nearly all writes take this path, without a promise.
    if (behind.hasRoom(data.length)) return taken(behind.write(id, piece, neverAborted) as number);
    return calls.wait(request, async (signal) => taken(await behind.write(id, piece, signal)));
  }

  async function writeThrough(id: number, at: WritePosition, data: Buffer, request: Request): Promise<number> {
    const { slot: place } = request;
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
      // The requester was interrupted while the data are in flight: keep their memory.
      if (waiting.delete(place)) journal?.keep(place);
    }
    losses.report(id, at.fh, request);
    return data.length;
  }

  return {
    flushed,
    write: (id, at, data, request) => {
      losses.report(id, at.fh, request);
      if (data.length === 0) return 0;
      return journal === undefined || parts.isSync || (at.openFlags & syncFlags) !== 0
        ? writeThrough(id, at, data, request)
        : accept(id, at, data, request);
    },
    settle: async (id, fh, request) => {
      await flushed(id, request);
      losses.report(id, fh, request);
    },
    settled: (id, request, range) => waitUnlessInterrupted(request, behind.settled(id, range)),
    end: (id) => behind.end(id),
    get revalidations() {
      return revalidations;
    },
    opened: losses.opened,
    closed: (id, fh) => {
      losses.closed(id, fh);
      return behind.flush(id);
    },
    forget: losses.forget,
    behind: {
      restore: ({ place, node, offset, data, ...writer }) => behind.restore(node, { place, offset, data, writer }),
      commitSoon: behind.commitSoon,
      revalidate: () => {
        if (behind.files > 0) revalidations++;
        behind.revalidate();
      },
      flush: behind.flushAll,
      stop: () => {
        losses.stop();
        return background.stop();
      },
      get files() {
        return behind.files;
      },
    },
  };
}

const neverAborted = new AbortController().signal;

const totalBytes = (pieces: readonly { readonly data: Uint8Array }[]): number =>
  pieces.reduce((sum, { data }) => sum + data.length, 0);
