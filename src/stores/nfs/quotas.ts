import { isErrno } from '#base/errno.ts';
import type { NfsQuota } from '#base/nfs-mount.ts';
import type { Volume, VolumeId } from '#core/model.ts';
import type { Quotas } from '../file-store/layout-directory.ts';
import type { NfsStoreRoot } from './open-store-root.ts';

/** Nodes count in doubles; beyond 8 PiB nobody sees the difference. */
const maxBytes = BigInt(Number.MAX_SAFE_INTEGER);
const numberOf = (bytes: bigint): number => Number(bytes < maxBytes ? bytes : maxBytes);

export interface NfsQuotas extends Quotas {
  /** What whoever mounts the volume is told. Undefined: it is not held to a size. */
  of(volume: Pick<Volume, 'id' | 'bytes' | 'enforce'>): Promise<NfsQuota | undefined>;
}

/**
 * Which volumes are held to their sizes. The nodes that have one mounted record there what they use: `.stowage/quota/<id>`
 * is theirs, all but the file `limit`. See datapath/quota/ledger.ts.
 */
export function createQuotas({ files, ownPath, scratchPath }: NfsStoreRoot): NfsQuotas {
  const folderOf = (id: VolumeId): string => ownPath('quota', id);

  return {
    of: async ({ id, bytes, enforce }) => {
      if (!enforce || bytes === undefined) return undefined;
      await files.makeFolder(folderOf(id));
      return { bytes: numberOf(bytes), ledger: Buffer.from(await files.handle(folderOf(id))).toString('base64') };
    },
    raise: async (id, bytes) => {
      // Never mounted: who mounts it reads the volume's own record.
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
