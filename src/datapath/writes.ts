import { constants } from 'node:fs';
import { unlessAborted } from '#base/aborted.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { type BackgroundWritesOptions, createBackgroundWrites, type Writer } from './background-writes.ts';
import { type Budget, costOf } from './budget.ts';
import type { Calls } from './calls.ts';
import type { DataLoss } from './data-loss-log.ts';
import { createLossReports } from './loss-reports.ts';
import type { MountContext } from './mount-context.ts';
import type { Range } from './pieces.ts';
import type { AcknowledgedWrite, JournaledWrites } from './ports.ts';
import { createWriteBehind } from './write-behind.ts';

type WritePosition = { readonly fh: number; readonly offset: number; readonly openFlags: number };

/** Writes of a mount and their state on the server. */
export interface Writes {
  write(id: number, position: WritePosition, data: Buffer, request: Request): number | Promise<number>;
  /** Waits until everything is on the server's disk; throws a loss once per open file. */
  flushAndReport(id: number, fh: number, request: Request): Promise<void>;
  /** Resolves when everything is on the server's disk or lost. Undefined: there is nothing. */
  flush(id: number, request: Request): Promise<void> | undefined;
  /**
   * Resolves when the server has answered every write so far (of the range) and its attributes are right. Undefined:
   * there is nothing to wait for.
   */
  waitUntilAnswered(id: number, request: Request, range?: Range): Promise<void> | undefined;
  /** The minimum size by unanswered writes. Undefined: all are answered. */
  unansweredEnd(id: number): number | undefined;
  /** Counts possible server restarts: data read meanwhile may be incomplete. */
  readonly revalidations: number;
  recordOpen(id: number, fh: number): void;
  flushOnClose(id: number, fh: number): Promise<void> | undefined;
  forget(id: number): void;
  readonly uncommitted: UncommittedWrites;
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
  /** Stops sending, and records no more losses. Resolves when no call is in flight. */
  stop(): Promise<void>;
  /** Number of files with data that are not on the server's disk. */
  readonly files: number;
}

export interface WritesParts extends BackgroundWritesOptions {
  readonly context: MountContext;
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
  const synchronousPlaces = new Set<number>();
  let revalidations = 0;

  const writeBehind = createWriteBehind<number, Writer>({
    clock,
    budgets,
    cost: costOf,
    send: background.send,
    commit: background.commit,
    keyOf: (id) => id,
    keep: (place) => {
      if (!synchronousPlaces.has(place)) journal?.keep(place);
    },
    free: (place) => {
      parts.onDone?.(place);
      if (!synchronousPlaces.delete(place)) journal?.free(place);
    },
    onLost: (id, { code }, lost) => {
      losses.add(id, code);
      const bytes = totalBytes(lost.filter(({ place }) => !synchronousPlaces.has(place)));
      if (bytes > 0) parts.onLost?.({ id, fileId: attributes.lastSeen(id)?.fileId, code, bytes });
    },
  });

  const waitUnlessInterrupted = (request: Request, work: Promise<void> | undefined): Promise<void> | undefined =>
    work && calls.wait(request, (signal) => unlessAborted(work, signal));

  const flush = (id: number, request: Request): Promise<void> | undefined =>
    waitUnlessInterrupted(request, writeBehind.flush(id));

  function accept(id: number, { fh, offset }: WritePosition, data: Buffer, request: Request): number | Promise<number> {
    const { slot: place, uid, gid } = request;
    const piece = { place, offset, data, writer: { fh, uid, gid } };
    const recordAccepted = (length: number): number => {
      attributes.recordKernelSize(id, offset + length);
      return length;
    };
    // Nearly all writes take this path, without a promise.
    if (writeBehind.hasRoom(data.length)) return recordAccepted(writeBehind.write(id, piece, neverAborts) as number);
    return calls.wait(request, async (signal) => recordAccepted(await writeBehind.write(id, piece, signal)));
  }

  async function writeThrough(id: number, position: WritePosition, data: Buffer, request: Request): Promise<number> {
    const { slot: place } = request;
    synchronousPlaces.add(place);
    try {
      await accept(id, position, data, request);
    } catch (cause) {
      synchronousPlaces.delete(place);
      throw cause;
    }
    try {
      await flush(id, request);
    } finally {
      // The requester was interrupted while the data are in flight: keep their memory.
      if (synchronousPlaces.delete(place)) journal?.keep(place);
    }
    losses.report(id, position.fh, request);
    return data.length;
  }

  return {
    flush,
    write: (id, position, data, request) => {
      losses.report(id, position.fh, request);
      if (data.length === 0) return 0;
      return journal === undefined || parts.isSync || (position.openFlags & syncFlags) !== 0
        ? writeThrough(id, position, data, request)
        : accept(id, position, data, request);
    },
    flushAndReport: async (id, fh, request) => {
      await flush(id, request);
      losses.report(id, fh, request);
    },
    waitUntilAnswered: (id, request, range) => waitUnlessInterrupted(request, writeBehind.waitUntilAnswered(id, range)),
    unansweredEnd: (id) => writeBehind.unansweredEnd(id),
    get revalidations() {
      return revalidations;
    },
    recordOpen: losses.recordOpen,
    flushOnClose: (id, fh) => {
      losses.recordClose(id, fh);
      return writeBehind.flush(id);
    },
    forget: losses.forget,
    uncommitted: {
      restore: ({ place, node, offset, data, ...writer }) => writeBehind.restore(node, { place, offset, data, writer }),
      commitSoon: writeBehind.commitSoon,
      revalidate: () => {
        if (writeBehind.files > 0) revalidations++;
        writeBehind.revalidate();
      },
      flush: writeBehind.flushAll,
      stop: () => {
        losses.stop();
        return background.stop();
      },
      get files() {
        return writeBehind.files;
      },
    },
  };
}

const neverAborts = new AbortController().signal;

const totalBytes = (pieces: readonly { readonly data: Uint8Array }[]): number =>
  pieces.reduce((sum, { data }) => sum + data.length, 0);
