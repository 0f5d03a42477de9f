import type { Superblock } from '#base/superblock.ts';
import { StowageError } from '#core/errors.ts';
import type { Loop } from '../mounter/attached-loops.ts';
import { mountFailure } from '../mounter/mount-failure.ts';
import { CommandFailed } from '../mounter/run-program.ts';

export function imageDamaged(image: string, kind: Superblock['kind'], cause?: unknown): StowageError {
  const repair = kind === 'xfs' ? `xfs_repair ${image}` : `e2fsck -f ${image}`;
  return new StowageError(`the ${kind} file system in ${image} is damaged and cannot be mounted`, {
    code: 'conflict',
    reason: 'filesystem-damaged',
    action: `Copy the image, then repair it: ${repair}`,
    cause,
  });
}

/** Interprets a failed `mount` of the image's loop device. */
export function loopMountFailure(image: string, at: string, kind: Superblock['kind'], cause: unknown): unknown {
  if (!(cause instanceof CommandFailed)) return cause;
  const output = cause.stderr.toLowerCase();
  if (output.includes('unknown filesystem type')) {
    return new StowageError(`the kernel of this machine does not support ${kind}`, {
      code: 'unsupported',
      reason: 'filesystem-unknown',
      action: `Load the module (modprobe ${kind}), or create the volume with another file system.`,
      cause,
    });
  }
  // The kernel reports the same for an image whose UUID is mounted already: such a copy would need `nouuid`.
  if (
    output.includes('structure needs cleaning') ||
    output.includes('bad superblock') ||
    output.includes("can't read superblock")
  )
    return imageDamaged(image, kind, cause);
  return mountFailure(`${image} could not be mounted at ${at}`, cause);
}

export function noLoopDevice(image: string, cause: unknown): StowageError {
  return new StowageError(`no loop device is available for ${image}`, {
    code: 'unsupported',
    reason: 'loop-unavailable',
    action:
      'Load the driver (modprobe loop), and give Stowage access to /dev/loop-control and the loop devices. To check: stowage doctor',
    cause,
  });
}

export function attachedReadOnly(image: string, { node }: Loop): StowageError {
  return new StowageError(`${image} is attached read-only to ${node}, so it cannot be mounted for writing`, {
    code: 'conflict',
    reason: 'loop-read-only',
    action: `Find what uses ${node} (findmnt -S ${node}, fuser -v ${node}), unmount and detach the device (losetup --detach ${node}), then retry.`,
  });
}

export function mountOccupied(mountPoint: string, by: string): StowageError {
  return new StowageError(`something else is mounted at ${mountPoint}: ${by}`, {
    code: 'conflict',
    reason: 'mount-occupied',
    action: `Unmount it: umount ${mountPoint}`,
  });
}

export function keepsBeingRenamed({ node, file }: Loop): StowageError {
  return new StowageError(`${node} could not be detached: its image keeps being renamed, most recently to ${file}`, {
    code: 'busy',
    reason: 'loop-detaching',
    action: 'Stop the program that renames the image, then retry.',
  });
}

export function stillMounted(image: string, places: readonly string[]): StowageError {
  return new StowageError(`${image} cannot be detached: it is still mounted at ${places.slice(0, 4).join(', ')}`, {
    code: 'in-use',
    reason: 'mount-busy',
    action: `Unmount it there first: umount ${places[0]}`,
  });
}

export function stillStacked({ file, node, name }: Loop): StowageError {
  return new StowageError(`${file} cannot be detached: another block device is stacked on ${node}`, {
    code: 'in-use',
    reason: 'mount-busy',
    action: `Remove that device first. To list it: ls /sys/block/${name}/holders`,
  });
}

export function stillOpen(image: string, by: string): StowageError {
  return new StowageError(`${image} is in use by ${by}`, {
    code: 'in-use',
    reason: 'mount-busy',
    action: 'End these processes, or make them close the image, then retry.',
  });
}

export function growNeedsUnmount(image: string, cause: unknown): StowageError {
  return new StowageError(`the ext4 file system in ${image} cannot grow here while it is mounted`, {
    code: 'unsupported',
    reason: 'grow-needs-unmount',
    action: 'Unmount the volume everywhere, then mount it again: the mount grows the file system.',
    cause,
  });
}

export function growFailed(image: string, cause: unknown): StowageError {
  const why = cause instanceof Error ? ` (${cause.message})` : '';
  return new StowageError(`the file system in ${image} could not be made larger${why}`, {
    code: 'internal',
    reason: 'grow-failed',
    action: 'Check the kernel log (dmesg | tail), fix the cause, and retry. The volume stays usable with its old size.',
    cause,
  });
}
