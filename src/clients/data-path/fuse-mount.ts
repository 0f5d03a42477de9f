import { constants } from 'node:fs';
import { open, writeFile } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { MountSpec } from '#datapath/mount-spec.ts';
import { holdPath } from '../mounter/held-path.ts';
import { mountCalls } from '../mounter/mount-calls.ts';
import { mountFailure } from '../mounter/mount-failure.ts';
import type { MountTable } from '../mounter/mountinfo.ts';

export const fuseType = 'fuse.stowage';

/**
 * A large read-ahead makes a single reader fast over a network; the kernel's default is 128 KiB. It covers several READs of maximum size:
 * with just one, the server would idle while the client copies the reply.
 */
const readAheadKib = 4096;

/** The descriptor of /dev/fuse through which its holder serves the mount. Close it after passing it on. */
export interface MountedFuse extends AsyncDisposable {
  readonly fd: number;
}

/** Nothing serves the mount yet: processes that access it wait. */
export async function mountFuse(
  /** The source that `df` and `mount` show. It must not reveal the server or the path to the volume's users. */
  source: string,
  mountPoint: string,
  { readOnly, checks = 'kernel' }: Pick<MountSpec, 'readOnly' | 'checks'>,
): Promise<MountedFuse> {
  const device = await openFuse();
  try {
    await using heldMountPoint = await holdPath(mountPoint);
    const rights = ['user_id=0', 'group_id=0', 'allow_other', ...(checks === 'kernel' ? ['default_permissions'] : [])];
    const options = [`fd=${device.fd}`, 'rootmode=40000', ...rights].join(',');
    const flags = ['nosuid', 'nodev', ...(readOnly ? ['ro'] : [])];
    mountCalls.fuse({ type: fuseType, source, flags, options }, heldMountPoint);
    // Refer to the new mount by its name in its parent folder: opening the mount would wait for its server.
    await using heldParent = await holdPath(dirname(mountPoint));
    // If the mount were private, a mount made inside the volume at one of its paths would not be visible at the other paths.
    mountCalls.makeShared({ ...heldParent, procPath: `${heldParent.procPath}/${basename(mountPoint)}` });
    return { fd: device.fd, [Symbol.asyncDispose]: () => device.close() };
  } catch (cause) {
    await device.close();
    throw mountFailure(`the volume could not be mounted at ${mountPoint}`, cause);
  }
}

async function openFuse() {
  try {
    return await open('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
  } catch (cause) {
    const isDenied = isErrno(cause, 'EACCES', 'EPERM');
    throw new StowageError(`/dev/fuse ${isDenied ? 'cannot be opened: permission denied' : 'does not exist'}`, {
      code: isDenied ? 'denied' : 'unsupported',
      reason: 'fuse-missing',
      action: isDenied
        ? 'Permit it; in a container: docker run --device /dev/fuse'
        : 'Load the kernel module (modprobe fuse); in a container: docker run --device /dev/fuse',
      cause,
    });
  }
}

/** Best effort: in a container /sys may be read-only, and a missing read-ahead costs only speed. */
export async function setReadAhead(table: MountTable, mountPoint: string, scope: Scope): Promise<void> {
  const device = table.mountAt(mountPoint)?.device;
  if (device === undefined) return;
  await writeFile(`/sys/class/bdi/${device}/read_ahead_kb`, `${readAheadKib}\n`).catch((cause: unknown) =>
    scope.log.info('failed to set the read-ahead of a mount', { at: mountPoint, why: String(cause) }),
  );
}
