import { createLimiter } from '#base/limiter.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { Store } from '#core/ports.ts';
import {
  type Attributes,
  type FileHandle,
  fileType,
  isGone,
  isNfsError,
  type SetAttributes,
  walkTree,
} from '#wire/nfs3/index.ts';
import { encodeCredential } from '#wire/rpc/message.ts';
import { identityOf } from './connect.ts';
import type { NfsStoreRoot } from './open-store-root.ts';
import type { NfsOptions } from './options.ts';

/** Mode bits for the group. The set-gid bit of directories passes the group on to new files. */
const groupRights = { directory: 0o2070, other: 0o060 } as const;
/** Clears set-uid and set-gid when a file changes its group. */
const keptModeBits = 0o1777;
const maxConcurrentChanges = 16;

/**
 * Changes the group of all files of a volume, as a kubelet does for fsGroup, and keeps their owners. Changes the top directory last: once it
 * has the group and the mode, later calls skip the whole tree.
 */
export function createChownToGroup(storeRoot: NfsStoreRoot, options: NfsOptions): NonNullable<Store['chownToGroup']> {
  const { squash, timeout } = options;
  return async (source, group, { signal, log }) => {
    if (source.kind !== 'nfs') return;
    const { nfs } = storeRoot.session;
    const top = new Uint8Array(Buffer.from(source.way.root, 'base64')) as FileHandle;
    // A user other than root may only chown its own files, to a group that it is in. So put the group into the credential.
    const identity = identityOf(options);
    const callOptions = { signal, deadlineMs: timeout, credential: encodeCredential({ ...identity, groups: [group] }) };
    const limiter = createLimiter(maxConcurrentChanges);
    let changed = 0;

    const chownEntry = async (handle: FileHandle, attributes: Attributes): Promise<void> => {
      const changes = missingChanges(attributes, group);
      if (changes === undefined) return;
      await limiter.run(() => nfs.setattr(handle, changes, callOptions));
      changed++;
    };

    try {
      const before = await nfs.getattr(top, callOptions);
      if (missingChanges(before, group) === undefined) return;
      await walkTree(
        nfs,
        top,
        async ({ handle, attributes }) => {
          // Another file system is mounted there; it does not belong to the volume.
          if (attributes.fsid !== before.fsid) return false;
          await chownEntry(handle, attributes).catch((cause: unknown) => {
            if (!isGone(cause)) throw cause;
          });
          return true;
        },
        callOptions,
      );
      await chownEntry(top, before);
      if (missingChanges(await nfs.getattr(top, callOptions), group) !== undefined)
        throw groupRefused(group, identity.uid, squash);
    } catch (cause) {
      if (signal.aborted) throw stowageError(signal.reason);
      if (isNfsError(cause, 'PERM', 'ACCES')) throw groupRefused(group, identity.uid, squash, cause);
      throw cause instanceof StowageError
        ? cause
        : await storeRoot.failure(cause, `changing the group of the volume's files to ${group}`);
    }
    log.info('changed the group of the files of a volume', { path: source.path, group, files: changed });
  };
}

/** Undefined: nothing to change. */
function missingChanges({ type, gid, mode }: Attributes, group: number): SetAttributes | undefined {
  const hasGroup = gid === group;
  // Symbolic links have no mode bits of their own.
  if (type === fileType.link) return hasGroup ? undefined : { gid: group };
  const isFolder = type === fileType.directory;
  const neededBits = isFolder ? groupRights.directory : groupRights.other;
  if (hasGroup && (mode & neededBits) === neededBits) return undefined;
  return { gid: group, mode: (hasGroup || isFolder ? mode : mode & keptModeBits) | neededBits };
}

function groupRefused(group: number, uid: number, squash: NfsOptions['squash'], cause?: unknown): StowageError {
  const user = squash === 'none' ? 'root' : `user ${uid}, to which root is mapped (squash=${squash}),`;
  return new StowageError(`the server does not let ${user} change the group of the volume's files to ${group}`, {
    code: 'denied',
    reason: 'group-refused',
    action:
      "Ask the store's administrator to set squash=all with the uid and gid that own its files (no file then needs a group of its own), or to export it with no_root_squash. Or remove fsGroup from the pod, and run it as a user with access to the files.",
    cause,
  });
}
