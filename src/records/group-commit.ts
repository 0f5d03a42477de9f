import type { Records } from '#core/ports.ts';
import type { Database } from './database.ts';

interface PendingWrite {
  readonly work: () => void;
  readonly resolve: () => void;
  readonly reject: (cause: unknown) => void;
}

/** One commit for what many want written at the same time; when it fails, none of it is. */
export function createGroupCommit(
  transaction: Database['transaction'],
  isInTransaction: () => boolean,
): Records['groupCommit'] {
  let waiting: PendingWrite[] = [];

  /** What became of each is told after the commit. */
  function tell({ work, resolve, reject }: PendingWrite): () => void {
    try {
      transaction(work);
      return resolve;
    } catch (cause) {
      // A full disk can make SQLite roll everything back by itself: what came after would be a transaction of its own.
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
