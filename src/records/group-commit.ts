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
  let pendingWrites: PendingWrite[] = [];

  /** Runs one write. Returns the function to call after the commit. */
  function runWrite({ work, resolve, reject }: PendingWrite): () => void {
    try {
      transaction(work);
      return resolve;
    } catch (cause) {
      // A full disk can make SQLite roll back everything by itself; further writes would then run in transactions of their own.
      if (!isInTransaction()) throw cause;
      return () => reject(cause);
    }
  }

  function commitPending(): void {
    const writes = pendingWrites;
    pendingWrites = [];
    try {
      for (const settle of transaction(() => writes.map(runWrite))) settle();
    } catch (cause) {
      for (const { reject } of writes) reject(cause);
    }
  }

  return async (work) => {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    if (pendingWrites.length === 0) setImmediate(commitPending);
    pendingWrites.push({ work, resolve, reject });
    await promise;
  };
}
