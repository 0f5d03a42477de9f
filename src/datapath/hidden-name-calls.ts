import type { Request } from '#wire/fuse/operations.ts';
import { isNfsError, NfsError } from '#wire/nfs3/status.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { recordChange } from './attribute-cache.ts';
import { isSameHandle } from './file-handles.ts';
import type { ResolvedName } from './find-name.ts';
import type { Caller } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import { keyOf } from './name-cache.ts';
import type { HiddenName } from './ports.ts';

export interface EntryName {
  readonly parent: number;
  readonly name: Buffer;
}

/** The server calls of silly renames. */
export interface HiddenNameCalls {
  /** Renames within the directory. */
  move(from: EntryName, to: Buffer, resolved: ResolvedName, request: Request): Promise<void>;
  /** Adds a name. False: the server cannot or will not. */
  addName(id: number, name: EntryName, request: Request): Promise<boolean>;
  /** The directory's owner may remove a hidden name of unknown origin. */
  ownerOf(hidden: HiddenName, request: Request): Promise<Caller>;
  asCallerOnly<R>(hidden: HiddenName, request: Request, call: (options: CallOptions) => Promise<R>): Promise<R>;
  hasHiddenName(hidden: HiddenName, resolved: ResolvedName, hidingRequest: Request): Promise<boolean>;
}

/** `recordAbsent`: records that the name is absent. */
export function createHiddenNameCalls(
  { nfs, server, attributes, names }: MountContext,
  recordAbsent: (at: EntryName) => void,
): HiddenNameCalls {
  async function move(
    { parent, name: from }: EntryName,
    to: Buffer,
    { handle: expected }: ResolvedName,
    request: Request,
  ): Promise<void> {
    const send = () =>
      server.callOn(request, parent, (directory, options) =>
        nfs.rename({ directory, name: from }, { directory, name: to }, { ...withoutDeadline(options), expected }),
      );
    await recordChange(attributes, parent, send, ({ to: change }) => change);
    recordAbsent({ parent, name: from });
    names.drop(parent, keyOf(to));
  }

  async function addName(id: number, { parent, name }: EntryName, request: Request): Promise<boolean> {
    const link = (file: FileHandle, directory: FileHandle, options: CallOptions) =>
      nfs.link(file, { directory, name }, withoutDeadline(options));
    const send = () => server.callOnTwo(request, id, parent, link, false);
    const onFile = () => recordChange(attributes, id, send, ({ attributes: after }) => ({ before: undefined, after }));
    try {
      await recordChange(attributes, parent, onFile, ({ change }) => change);
    } catch (cause) {
      if (cause instanceof NfsError) return false;
      throw cause;
    }
    names.drop(parent, keyOf(name));
    return true;
  }

  const ownerOf = async ({ directory }: HiddenName, request: Request): Promise<Caller> =>
    await server.asCallerOnly(request, (options) => nfs.getattr(directory, options));

  /**
   * For a directory that is unknown to the kernel, or for which it has not checked the caller: the group that would
   * permit access is unknown.
   */
  async function asCallerOnly<R>(
    hidden: HiddenName,
    request: Request,
    call: (options: CallOptions) => Promise<R>,
  ): Promise<R> {
    return await server.asCallerOnly(request, call).catch(async (cause: unknown) => {
      if (!isNfsError(cause, 'ACCES')) throw cause;
      return await server.asCallerOnly(withIdentity(request, await ownerOf(hidden, request)), call);
    });
  }

  /**
   * Whether the file still has its hidden name. The caller may be removing another name in another directory, and need
   * not have access to this one: `asker` has the identity that hid the file.
   */
  async function hasHiddenName(hidden: HiddenName, resolved: ResolvedName, hidingRequest: Request): Promise<boolean> {
    const lookup = (options: CallOptions) => nfs.lookup(hidden.directory, hidden.name, options);
    const found = await asCallerOnly(hidden, hidingRequest, lookup).catch((cause: unknown) => {
      if (!isNfsError(cause, 'NOENT', 'STALE')) throw cause;
      return undefined;
    });
    return found !== undefined && isSameHandle(found.handle, resolved.handle);
  }

  return { move, addName, ownerOf, asCallerOnly, hasHiddenName };
}

/** On a `soft` mount, too, the call has no deadline: only its requester stops waiting. */
export const withoutDeadline = (options: CallOptions): CallOptions => ({
  ...options,
  deadlineMs: Number.POSITIVE_INFINITY,
});

/** The same request with another identity. A getter creates the signal only when it is used. */
export const withIdentity = (request: Request, { uid, gid }: Caller): Request => ({
  uid,
  gid,
  pid: request.pid,
  slot: request.slot,
  resent: request.resent,
  get signal() {
    return request.signal;
  },
});
