import type { Operations, Statfs } from '#wire/fuse/operations.ts';
import { access } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import type { Quota } from './quota/quota.ts';

const statfsBlock = 4096;

/** `quota`: undefined shows the export's size. */
export function createStatfs({ nfs, server }: MountContext, quota: Quota | undefined): Operations['statfs'] {
  return async (id, request) => {
    if (quota !== undefined) return quotaStatfs(quota.statfs());
    const found = await server.callOn(request, id, (handle, options) => nfs.fsstat(handle, options), access.none);
    const blocks = (bytes: bigint): number => Number(bytes / BigInt(statfsBlock));
    return {
      blocks: blocks(found.totalBytes),
      bfree: blocks(found.freeBytes),
      bavail: blocks(found.availableBytes),
      files: Number(found.totalFiles),
      ffree: Number(found.freeFiles),
      bsize: statfsBlock,
      frsize: statfsBlock,
      namelen: 255,
    };
  };
}

/** The size of the volume, not of the export. Inodes are not counted. */
function quotaStatfs({ bytes, used }: { readonly bytes: number; readonly used: number }): Statfs {
  const [blocks, taken] = [Math.floor(bytes / statfsBlock), Math.ceil(used / statfsBlock)];
  const bfree = Math.max(0, blocks - taken);
  return {
    blocks,
    bfree,
    bavail: bfree,
    files: 0,
    ffree: 0,
    bsize: statfsBlock,
    frsize: statfsBlock,
    namelen: 255,
  };
}
