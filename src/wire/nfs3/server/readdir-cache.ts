import type { BigIntStats } from 'node:fs';
import type { ExportedTree } from './exported-tree.ts';
import type { Node } from './nodes.ts';

/** The encoded entries of a READDIRPLUS reply. */
export interface Page {
  readonly bytes: Buffer;
  /** The nodes whose attributes it contains. */
  readonly nodes: readonly Node[];
}

/**
 * Caches READDIRPLUS replies for a moment: stat calls for each file are nearly the whole cost of a listing. The directory itself
 * is checked each time, so the names are current. Changes by clients of this server show at once. Changes that others make to a
 * file may show a second later, as long as its name stays. (Clients cache attributes for longer.)
 */
export interface ReaddirCache {
  find(directory: Node, callKey: string, stats: BigIntStats): Page | undefined;
  /** `stats`: the directory's, from before the page was built. */
  keep(directory: Node, question: string, stats: BigIntStats, page: Page): void;
  /** Evicts expired pages. */
  evictExpired(): void;
}

interface CachedPage {
  readonly page: Page;
  readonly mtime: bigint;
  readonly ctime: bigint;
  /** In the clock's elapsed time. */
  readonly expiresAt: number;
  /** The tree's change count when the page was built. */
  readonly changeCount: number;
}

const pageLifetimeMs = 1000;
const maxCachedBytes = 8 * 1024 * 1024;

export function createReaddirCache(tree: Pick<ExportedTree, 'changeCount'>, elapsed: () => number): ReaddirCache {
  const cachedPages = new Map<string, CachedPage>();
  let bytes = 0;

  function forget(key: string): void {
    bytes -= cachedPages.get(key)?.page.bytes.length ?? 0;
    cachedPages.delete(key);
  }

  /** All pages have the same lifetime, so the first ones are the oldest. */
  function makeRoom(): void {
    const now = elapsed();
    for (const [key, { expiresAt }] of cachedPages) {
      if (expiresAt > now && bytes <= maxCachedBytes) return;
      forget(key);
    }
  }

  return {
    find: (directory, question, stats) => {
      const found = cachedPages.get(keyOf(directory, question));
      if (found === undefined || found.expiresAt <= elapsed()) return undefined;
      if (found.mtime !== stats.mtimeNs || found.ctime !== stats.ctimeNs) return undefined;
      for (const node of found.page.nodes) if (node.lastChange > found.changeCount) return undefined;
      return found.page;
    },
    keep: (directory, question, stats, page) => {
      const key = keyOf(directory, question);
      forget(key);
      const { mtimeNs: mtime, ctimeNs: ctime } = stats;
      cachedPages.set(key, {
        page,
        mtime,
        ctime,
        expiresAt: elapsed() + pageLifetimeMs,
        changeCount: tree.changeCount,
      });
      bytes += page.bytes.length;
      makeRoom();
    },
    evictExpired: makeRoom,
  };
}

const keyOf = ({ ino, birth }: Node, question: string): string => `${ino} ${birth} ${question}`;
