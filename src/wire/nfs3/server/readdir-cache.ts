import type { BigIntStats } from 'node:fs';
import type { ExportedTree } from './exported-tree.ts';
import type { Node } from './nodes.ts';

/** An answer to READDIRPLUS: its entries as they go over the wire. */
export interface Page {
  readonly bytes: Buffer;
  /** Whose attributes are in it. */
  readonly nodes: readonly Node[];
}

/**
 * Answers of the last moment, to be given again: asking the system about each file is nearly all that a listing costs. The
 * directory itself is asked each time, so names are as they are now. What clients change about a file shows at once; what
 * others change about it, as long as its name stays, may show a second later. (Clients believe attributes for longer.)
 */
export interface ReaddirCache {
  find(directory: Node, question: string, stats: BigIntStats): Page | undefined;
  /** `stats`: of the directory, from before the page was made. */
  keep(directory: Node, question: string, stats: BigIntStats, page: Page): void;
  /** Lets go what is too old. */
  evictExpired(): void;
}

interface CachedPage {
  readonly page: Page;
  readonly mtime: bigint;
  readonly ctime: bigint;
  /** By the clock's elapsed time. */
  readonly expiresAt: number;
  /** Of the tree, when it was made. */
  readonly changeCount: number;
}

const keptMs = 1000;
const maxBytes = 8 * 1024 * 1024;

export function createReaddirCache(tree: Pick<ExportedTree, 'changeCount'>, elapsed: () => number): ReaddirCache {
  const kept = new Map<string, CachedPage>();
  let bytes = 0;

  function forget(key: string): void {
    bytes -= kept.get(key)?.page.bytes.length ?? 0;
    kept.delete(key);
  }

  /** All are kept for the same time, so the first are the oldest. */
  function makeRoom(): void {
    const now = elapsed();
    for (const [key, { expiresAt }] of kept) {
      if (expiresAt > now && bytes <= maxBytes) return;
      forget(key);
    }
  }

  return {
    find: (directory, question, stats) => {
      const found = kept.get(keyOf(directory, question));
      if (found === undefined || found.expiresAt <= elapsed()) return undefined;
      if (found.mtime !== stats.mtimeNs || found.ctime !== stats.ctimeNs) return undefined;
      for (const node of found.page.nodes) if (node.lastChange > found.changeCount) return undefined;
      return found.page;
    },
    keep: (directory, question, stats, page) => {
      const key = keyOf(directory, question);
      forget(key);
      const { mtimeNs: mtime, ctimeNs: ctime } = stats;
      kept.set(key, { page, mtime, ctime, expiresAt: elapsed() + keptMs, changeCount: tree.changeCount });
      bytes += page.bytes.length;
      makeRoom();
    },
    evictExpired: makeRoom,
  };
}

const keyOf = ({ ino, birth }: Node, question: string): string => `${ino} ${birth} ${question}`;
