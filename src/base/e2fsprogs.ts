/**
 * The environment of e2fsck, mkfs.ext4 and resize2fs for an image that the caller knows not to be mounted, which skips their own check. That
 * check queries every mounted loop device of the machine, and one whose file system stopped answering would block it. Together the two
 * variables mean "not mounted". As a side effect e2fsck adds 2 to its exit status when it corrected something.
 */
export const unmountedImage = { EXT2FS_PRETEND_RO_MOUNT: '1', EXT2FS_PRETEND_ROOTFS: '1' } as const;
