import { isErrno } from '#base/errno.ts';
import type { NfsQuota } from '#base/nfs-mount.ts';
import type { Volume, VolumeId } from '#core/model.ts';
import type { Quotas } from '../file-store/layout-directory.ts';
import type { NfsStoreRoot } from './open-store-root.ts';

/** Nodes count in doubles, which are exact up to 8 PiB. */
const maxBytes = BigInt(Number.MAX_SAFE_INTEGER);
const numberOf = (bytes: bigint): number => Number(bytes < maxBytes ? bytes : maxBytes);

export interface NfsQuotas extends Quotas {
  /** The quota for clients that mount the volume. Undefined: its size is not enforced. */
  quotaOf(volume: Pick<Volume, 'id' | 'bytes' | 'enforce'>): Promise<NfsQuota | undefined>;
}

/**
 * Quotas of the volumes whose size is enforced. The nodes that have a volume mounted record their usage in `.stowage/quota/<id>`; all files
 * there but `limit` are theirs. See datapath/quota/ledger.ts.
 */
export function createQuotas({ files, ownPath, scratchPath }: NfsStoreRoot): NfsQuotas {
  const folderOf = (id: VolumeId): string => ownPath('quota', id);

  return {
    quotaOf: async ({ id, bytes, enforce }) => {
      if (!enforce || bytes === undefined) return undefined;
      await files.makeFolder(folderOf(id));
      return { bytes: numberOf(bytes), ledger: Buffer.from(await files.handle(folderOf(id))).toString('base64') };
    },
    raise: async (id, bytes) => {
      // The volume was never mounted. A client that mounts it gets the size from its record.
      if ((await files.lstat(folderOf(id))) === undefined) return;
      const fresh = scratchPath();
      await files.writeNew(fresh, `${JSON.stringify({ version: 1, bytes: numberOf(bytes) })}\n`);
      await files.rename(fresh, `${folderOf(id)}/limit`);
    },
    forget: async (id) => {
      try {
        await files.removeAll(folderOf(id));
      } catch (cause) {
        if (!isErrno(cause, 'ENOENT')) throw cause;
      }
    },
  };
}
