import type { AttrReply, Request, SetAttr, Time } from '#wire/fuse/operations.ts';
import type { FileHandle, SetAttributes } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { recordChange } from './attribute-cache.ts';
import { access, type Caller } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import type { Charges } from './quota/charges.ts';
import type { Writes } from './writes.ts';

export interface SetattrOperation {
  setattr(id: number, set: SetAttr, request: Request): Promise<AttrReply>;
}

const maxNfsSeconds = 0xffff_ffff;
/** From here on a 64-bit number is negative. */
const firstNegative = 2 ** 63;

export function createSetattr(
  { nfs, server, attributes }: MountContext,
  writes: Pick<Writes, 'flush'>,
  charges: Pick<Charges, 'spaceToFree' | 'recordResize'>,
  /** The group shown for every object, whatever the server has. */
  shownGroup?: number,
): SetattrOperation {
  async function applySetattr(
    id: number,
    changes: SetAttributes,
    fh: number | undefined,
    request: Request,
  ): Promise<void> {
    // Commit first: data that the server lost by a restart would be resent over the new attributes.
    await writes.flush(id, request);
    const before = changes.size === undefined ? undefined : await charges.spaceToFree(id, request);
    const call = (handle: FileHandle, options: CallOptions) => nfs.setattr(handle, changes, options);
    // The kernel has verified that the caller is in the new group.
    const caller: Caller =
      changes.gid === undefined ? request : { uid: request.uid, gid: request.gid, group: changes.gid };
    const send = () =>
      fh === undefined
        ? server.callOn(request, id, call, access.write, caller)
        : server.callOnOpenFile(request, id, fh, call, access.write);
    const { after } = await recordChange(attributes, id, send, (change) => change);
    if (after === undefined) await server.getattr(request, id);
    if (changes.size !== undefined) charges.recordResize(id, before, after ?? attributes.lastSeen(id));
  }

  return {
    setattr: async (id, { fh, atime, mtime, ...rest }, request) => {
      // A program that copies files with their groups sets the group that it was shown: a no-op.
      const gid = rest.gid === shownGroup ? undefined : rest.gid;
      await applySetattr(id, { ...rest, gid, atime: nfsTime(atime), mtime: nfsTime(mtime) }, fh, request);
      return attributes.attrReply(id);
    },
  };
}

/** NFS has 32 bits for seconds since 1970. */
function nfsTime(given: Time | 'now' | undefined): SetAttributes['atime'] {
  if (given === undefined || given === 'now') return given;
  if (given.seconds >= firstNegative) return { seconds: 0, nanoseconds: 0 };
  return given.seconds > maxNfsSeconds ? { seconds: maxNfsSeconds, nanoseconds: 0 } : given;
}
