import { constants } from 'node:fs';
import { open, writeFile } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { MountSpec } from '#datapath/mount-spec.ts';
import { mountFailure } from '../mounter/errors.ts';
import { holdPath } from '../mounter/held-path.ts';
import { mountCalls } from '../mounter/mount-calls.ts';
import type { MountTable } from '../mounter/mountinfo.ts';

export const fuseType = 'fuse.stowage';

/**
 * Much read in advance is what makes one reader fast over a network; the kernel's own choice is 128 KiB. Several READs of the
 * most that one can carry: with one alone the server rests while its answer is copied.
 */
const readAheadKib = 4096;

/** A descriptor that whoever holds it serves the mount by. Close it when it was given away. */
export interface MountedFuse extends AsyncDisposable {
  readonly fd: number;
}

/** Nobody serves it yet: who looks into it waits. */
export async function mountFuse(
  /** What `df` and `mount` show. No server, no path: whoever uses a volume has no business with them. */
  source: string,
  at: string,
  { readOnly, checks = 'kernel' }: Pick<MountSpec, 'readOnly' | 'checks'>,
): Promise<MountedFuse> {
  const device = await openFuse();
  try {
    await using place = await holdPath(at);
    const rights = ['user_id=0', 'group_id=0', 'allow_other', ...(checks === 'kernel' ? ['default_permissions'] : [])];
    const options = [`fd=${device.fd}`, 'rootmode=40000', ...rights].join(',');
    const flags = ['nosuid', 'nodev', ...(readOnly ? ['ro'] : [])];
    mountCalls.fuse({ type: fuseType, source, flags, options }, place);
    // Held by its place in its folder, as one that was just mounted: to look at it is to wait for who serves it.
    await using folder = await holdPath(dirname(at));
    // Else, below a private mount, what somebody mounts into the volume at one of its paths is not seen at the others.
    mountCalls.share({ ...folder, through: `${folder.through}/${basename(at)}` });
    return { fd: device.fd, [Symbol.asyncDispose]: () => device.close() };
  } catch (cause) {
    await device.close();
    throw mountFailure(`the volume could not be mounted at ${at}`, cause);
  }
}

async function openFuse() {
  try {
    return await open('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
  } catch (cause) {
    const isDenied = isErrno(cause, 'EACCES', 'EPERM');
    throw new StowageError(`/dev/fuse ${isDenied ? 'may not be opened' : 'is not there'}`, {
      code: isDenied ? 'denied' : 'unsupported',
      reason: 'fuse-missing',
      action: isDenied
        ? 'Allow it; in a container: docker run --device /dev/fuse'
        : 'Load the kernel module (modprobe fuse); in a container: docker run --device /dev/fuse',
      cause,
    });
  }
}

/** As far as permitted: in a container /sys may be read-only, and it only costs speed. */
export async function setReadAhead(table: MountTable, at: string, scope: Scope): Promise<void> {
  const device = table.at(at)?.device;
  if (device === undefined) return;
  await writeFile(`/sys/class/bdi/${device}/read_ahead_kb`, `${readAheadKib}\n`).catch((cause: unknown) =>
    scope.log.info('read-ahead stays as the kernel chose it', { at, why: String(cause) }),
  );
}
