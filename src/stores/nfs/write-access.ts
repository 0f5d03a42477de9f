import { StowageError } from '#core/errors.ts';
import type { Store } from '#core/ports.ts';
import { accessRight, type FileHandle } from '#wire/nfs3/index.ts';
import type { NfsStoreRoot } from './open-store-root.ts';
import type { NfsOptions } from './options.ts';

/**
 * Refuses a directory that no caller could write to; otherwise containers would get EACCES without a reason. Either it belongs to root, and
 * the server or the store's options map root to another user; or squash=all maps every user to one that may not write to it. Without
 * squash=all, a directory that belongs to another user, or that its group or others may write to, is fine.
 */
export function createWriteAccessCheck(
  storeRoot: NfsStoreRoot,
  options: NfsOptions,
): NonNullable<Store['checkWritable']> {
  const { squash, timeout } = options;
  return async (source, { signal }) => {
    if (source.kind !== 'nfs') return;
    const handle = new Uint8Array(Buffer.from(source.way.root, 'base64')) as FileHandle;
    const limits = { signal, deadlineMs: timeout };
    const { nfs } = storeRoot.session;
    try {
      const [granted, { uid, mode }] = await Promise.all([
        // Calls as the user to which root is mapped: with squash, the store's user.
        nfs.access(handle, accessRight.modify | accessRight.extend, limits),
        nfs.getattr(handle, limits),
      ]);
      const mayBeOthers = squash !== 'all' && (uid !== 0 || (mode & 0o022) !== 0);
      // The mode makes it read-only for all users, so that is intended.
      const isReadOnlyMode = (mode & 0o222) === 0;
      if (granted !== 0 || mayBeOthers || isReadOnlyMode) return;
    } catch (cause) {
      throw await storeRoot.failure(cause, 'checking who may write to the volume');
    }
    throw squash === 'none' ? rootSquashed() : squashedUserDenied(source.way.uid, squash);
  };
}

const rootSquashed = (): StowageError =>
  new StowageError(
    'no container could write to the volume: root owns its directory, and the server maps root to nobody (root_squash)',
    {
      code: 'denied',
      reason: 'volume-root-squashed',
      action:
        "Ask the store's administrator to change the owner of the directory on the server (chown), to set squash=root with the uid and gid that own it, or to export it with no_root_squash.",
    },
  );

const squashedUserDenied = (uid: number, squash: 'root' | 'all'): StowageError =>
  new StowageError(
    `no container could write to the volume: squash=${squash} maps ${squash === 'all' ? 'every user' : 'root'} to user ${uid}, and another user owns its directory`,
    {
      code: 'denied',
      reason: 'volume-root-squashed',
      action: `Ask the store's administrator to make that user the owner of the directory on the server (chown ${uid}), or to set the uid and gid that own it; if the volume is only read, to set readOnly=true.`,
    },
  );
