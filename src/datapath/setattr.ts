import type { AttrReply, Request, SetAttr, Time } from '#wire/fuse/operations.ts';
import type { FileHandle, SetAttributes } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { recordChange } from './attribute-cache.ts';
import type { Context } from './context.ts';
import { access, type Caller } from './identity.ts';
import type { Charges } from './quota/charges.ts';
import type { Writes } from './writes.ts';

export interface SetattrOperation {
  setattr(id: number, set: SetAttr, request: Request): Promise<AttrReply>;
}

const latest = 0xffff_ffff;
/** From here on a 64-bit number is negative. */
const firstNegative = 2 ** 63;

export function createSetattr(
  { nfs, server, attributes }: Context,
  writes: Pick<Writes, 'flushed'>,
  charges: Pick<Charges, 'spaceToFree' | 'resized'>,
  /** The group shown for every object, whatever the server has. */
  shownGroup?: number,
): SetattrOperation {
  async function set(id: number, what: SetAttributes, fh: number | undefined, request: Request): Promise<void> {
    // Commit first: data that the server lost by a restart would be resent over the new attributes.
    await writes.flushed(id, request);
    const before = what.size === undefined ? undefined : await charges.spaceToFree(id, request);
    const call = (handle: FileHandle, options: CallOptions) => nfs.setattr(handle, what, options);
    // The kernel has verified that the caller is in the new group.
    const who: Caller = what.gid === undefined ? request : { uid: request.uid, gid: request.gid, group: what.gid };
    const send = () =>
      fh === undefined
        ? server.callOn(request, id, call, access.write, who)
        : server.callOnOpenFile(request, id, fh, call, access.write);
    const { after } = await recordChange(attributes, id, send, (change) => change);
    if (after === undefined) await server.getattr(request, id);
    if (what.size !== undefined) charges.resized(id, before, after ?? attributes.last(id));
  }

  return {
    setattr: async (id, { fh, atime, mtime, ...rest }, request) => {
      // A program that copies files with their groups sets the group that it was shown: a no-op.
      const gid = rest.gid === shownGroup ? undefined : rest.gid;
      await set(id, { ...rest, gid, atime: time(atime), mtime: time(mtime) }, fh, request);
      return attributes.attrReply(id);
    },
  };
}

/** NFS has 32 bits for seconds since 1970. */
function time(given: Time | 'now' | undefined): SetAttributes['atime'] {
  if (given === undefined || given === 'now') return given;
  if (given.seconds >= firstNegative) return { seconds: 0, nanoseconds: 0 };
  return given.seconds > latest ? { seconds: latest, nanoseconds: 0 } : given;
}
