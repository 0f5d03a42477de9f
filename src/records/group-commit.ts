import type { Records } from '#core/ports.ts';

interface PendingWrite {
  readonly work: () => void;
  readonly resolve: () => void;
  readonly reject: (cause: unknown) => void;
}

/** Commits concurrent writes in one transaction. If the commit fails, all of them fail. */
export function createGroupCommit(
  transaction: <T>(work: () => T) => T,
  isInTransaction: () => boolean,
): Records['groupCommit'] {
  let waiting: PendingWrite[] = [];

  /** Runs one write. Returns the function to call after the commit. */
  function tell({ work, resolve, reject }: PendingWrite): () => void {
    try {
      transaction(work);
      return resolve;
    } catch (cause) {
      // A full disk can make SQLite roll back everything by itself; further writes would then run in transactions of their own.
      if (!isInTransaction()) throw cause;
      return () => reject(cause);
    }
  }

  function write(): void {
    const all = waiting;
    waiting = [];
    try {
      for (const told of transaction(() => all.map(tell))) told();
    } catch (cause) {
      for (const { reject } of all) reject(cause);
    }
  }

  return async (work) => {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    if (waiting.length === 0) setImmediate(write);
    waiting.push({ work, resolve, reject });
    await promise;
  };
}
