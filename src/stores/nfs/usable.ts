import { StowageError } from '#core/errors.ts';
import type { Store } from '#core/ports.ts';
import { accessRight, type FileHandle } from '#wire/nfs3/index.ts';
import type { NfsOptions } from './options.ts';
import type { NfsPlace } from './place.ts';

/**
 * A directory that belongs to root, on a server that takes root for nobody: whoever it is mounted for meets EACCES, and nothing
 * says why. What belongs to somebody else is for them, and they can write.
 */
export function createUsable(place: NfsPlace, { squash, timeout }: NfsOptions): NonNullable<Store['usable']> {
  return async (source, { signal }) => {
    if (source.kind !== 'nfs' || squash !== 'none') return;
    const handle = new Uint8Array(Buffer.from(source.way.root, 'base64')) as FileHandle;
    const within = { signal, deadlineMs: timeout };
    const { nfs } = place.session;
    try {
      const [granted, { uid, mode }] = await Promise.all([
        nfs.access(handle, accessRight.modify | accessRight.extend, within),
        nfs.getattr(handle, within),
      ]);
      const isOthers = uid !== 0 || (mode & 0o022) !== 0;
      if (granted !== 0 || isOthers || (mode & 0o200) === 0) return;
    } catch (cause) {
      throw place.failure(cause, 'looking at who may write to the volume');
    }
    throw new StowageError(
      'nobody could write to the volume: its directory belongs to root, and the server takes root for nobody (root_squash)',
      {
        code: 'denied',
        reason: 'volume-root-squashed',
        action:
          "Ask the store's administrator to give the directory to a user on the server (chown), or the store squash=root with the uid and gid that own it; or to export it with no_root_squash.",
      },
    );
  };
}
