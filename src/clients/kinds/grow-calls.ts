import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { lazyBindings, libc, SystemError } from '#base/linux/libc.ts';

/**
 * Grow a mounted file system to `bytes` with one system call. xfs_growfs and resize2fs make the same call, but first look at every mount or
 * mounted loop device of the machine: one that stopped answering would block them.
 */
export interface GrowCalls {
  xfs(mountPoint: string, bytes: number): Promise<void>;
  ext4(mountPoint: string, bytes: number, blockBytes: number): Promise<void>;
}

/** ioctl numbers for x86 and arm64, from linux/fs/xfs/libxfs/xfs_fs.h and fs/ext4/ext4.h. */
const request = { xfsGeometry: 0x8070_5864, xfsGrow: 0x4010_586e, ext4Resize: 0x4008_6610 } as const;
/** struct xfs_fsop_geom_v1. */
const [geometryBytes, blockSizeAt, inodePercentAt, dataBlocksAt] = [112, 0, 28, 32];
/** resize2fs rounds to this, too. */
const pageBytes = 4096;

const calls = lazyBindings({ ioctl: 'int ioctl(int fd, unsigned long request, void *argument)' });

async function ioctl(name: keyof typeof request, fd: number, argument: Buffer): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  calls().ioctl.async(fd, request[name], argument, (failed: Error | null, result: number) => {
    if (failed !== null) reject(failed);
    else if (result < 0) reject(new SystemError(`ioctl ${name}`, libc().koffi.errno()));
    else resolve();
  });
  await promise;
}

export const growCalls: GrowCalls = {
  xfs: async (mountPoint, bytes) => {
    await using folder = await open(mountPoint, constants.O_RDONLY | constants.O_DIRECTORY);
    const geometry = Buffer.alloc(geometryBytes);
    await ioctl('xfsGeometry', folder.fd, geometry);
    const blocks = BigInt(Math.floor(bytes / geometry.readUInt32LE(blockSizeAt)));
    if (blocks <= geometry.readBigUInt64LE(dataBlocksAt)) return;
    const newGeometry = Buffer.alloc(16);
    newGeometry.writeBigUInt64LE(blocks, 0);
    newGeometry.writeUInt32LE(geometry.readUInt32LE(inodePercentAt), 8);
    await ioctl('xfsGrow', folder.fd, newGeometry);
  },
  ext4: async (mountPoint, bytes, blockBytes) => {
    await using top = await open(mountPoint, constants.O_RDONLY | constants.O_DIRECTORY);
    const blocks = Buffer.alloc(8);
    blocks.writeBigUInt64LE(BigInt(Math.floor((bytes - (bytes % pageBytes)) / blockBytes)));
    await ioctl('ext4Resize', top.fd, blocks);
  },
};
