import type { StoredGrowth } from '#datapath/quota/account.ts';
import { createLedger } from '#datapath/quota/ledger.ts';
import { createQuota, type Quota } from '#datapath/quota/quota.ts';
import { createRecount, type Recount } from '#datapath/quota/recount.ts';
import type { SharedFolder } from './fakes/shared-folder.ts';

export const limit = 64_000;
export const neverAborts = new AbortController().signal;

/** The sizes of the files on the server. A recount reads them one by one while they change. */
export type FileSizes = Map<string, number>;
export const sizeOf = (tree: FileSizes): number => [...tree.values()].reduce((sum, size) => sum + size, 0);

export interface QuotaNode {
  readonly quota: Quota;
  readonly recount: Recount;
  readonly kept: { value: { epoch: number; growth: number } } & StoredGrowth;
  /** Stops the node at once, without returning its share of the quota. */
  die(): void;
}

export function storedGrowth(value = { epoch: 0, growth: 0 }): QuotaNode['kept'] {
  const kept: QuotaNode['kept'] = {
    value,
    read: () => kept.value,
    write: (epoch, growth) => {
      kept.value = { epoch, growth };
    },
  };
  return kept;
}

export function startQuotaNode(
  folder: SharedFolder,
  tree: FileSizes,
  member: string,
  kept = storedGrowth(),
  most = limit,
): QuotaNode {
  const { clock } = folder;
  const alive = new AbortController();
  const parts = { clock, signal: alive.signal, limit: most };
  const ledger = createLedger({ ...parts, files: folder.files(), member, random: () => folder.random(1000) / 1000 });
  const recount = createRecount({
    files: folder.files(),
    clock,
    count: async () => {
      let bytes = 0;
      for (const name of Array.from(tree.keys())) {
        await folder.turn();
        bytes += tree.get(name) ?? 0;
      }
      return { bytes, complete: true };
    },
  });
  const failed = (cause: unknown): never => {
    throw cause;
  };
  return {
    quota: createQuota({ ...parts, ledger, recount, storedGrowth: kept, failed }),
    recount,
    kept,
    die: () => alive.abort(),
  };
}
