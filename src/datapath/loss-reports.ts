import { Errno, type ErrnoName } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import type { Nodes } from './ports.ts';

/** Reports lost data once to each open file. A successor reports a loss to all of them once more. */
export interface LossReports {
  /** Acknowledged data of the file were lost. */
  add(id: number, code: ErrnoName): void;
  /** Throws the file's loss, unless this open file has reported it. */
  report(id: number, fh: number, request: Request): void;
  recordOpen(id: number, fh: number): void;
  recordClose(id: number, fh: number): void;
  forget(id: number): void;
  /** Records no more reports: a successor will. */
  stop(): void;
}

export function createLossReports(nodes: Nodes): LossReports {
  /** Open files that have reported a loss, by node. */
  const reported = new Map<number, Set<number>>();
  let isStopped = false;

  function report(id: number, fh: number, { resent }: Request): void {
    const lost = nodes.dataLoss(id);
    if (lost === undefined || reported.get(id)?.has(fh) === true) return;
    // The kernel may drop this reply, so don't mark the error as reported: reporting it twice is better than losing it.
    if (resent) throw new Errno(lost);
    markReported(id, fh);
    // After the answer is in the journal: if killed before that, the successor reports it.
    setImmediate(() => {
      // Unless more was lost since.
      if (reported.get(id)?.has(fh) === true && !isStopped) nodes.setLossReported(id);
      clearLossIfReported(id, 0);
    });
    throw new Errno(lost);
  }

  function markReported(id: number, fh: number): void {
    const fileHandles = reported.get(id) ?? new Set();
    reported.set(id, fileHandles.add(fh));
  }

  /** Clears the loss when all open files, except for `exemptOpens` of them, have reported it. */
  function clearLossIfReported(id: number, exemptOpens: number): void {
    const { opens = 0 } = nodes.get(id) ?? {};
    if (isStopped || (reported.get(id)?.size ?? 0) < opens - exemptOpens) return;
    nodes.setDataLoss(id, undefined);
    reported.delete(id);
  }

  return {
    add: (id, code) => {
      nodes.setDataLoss(id, code);
      reported.delete(id);
    },
    report,
    recordOpen: (id, fh) => {
      // Keep a loss that was never reported: the writer may have been killed, and checks the file when it restarts.
      if (nodes.dataLoss(id) === undefined || !nodes.isLossReported(id)) return;
      clearLossIfReported(id, 1);
      if (nodes.dataLoss(id) !== undefined) markReported(id, fh);
    },
    recordClose: (id, fh) => {
      reported.get(id)?.delete(fh);
    },
    forget: (id) => {
      reported.delete(id);
    },
    stop: () => {
      isStopped = true;
    },
  };
}
