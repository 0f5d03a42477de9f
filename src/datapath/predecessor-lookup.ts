import type { Request } from '#wire/fuse/operations.ts';
import { NfsError } from '#wire/nfs3/status.ts';
import { type Attributes, type FileHandle, fileType, type Time } from '#wire/nfs3/structures.ts';
import { isMarked } from './creation-marks.ts';
import type { Entries } from './entries.ts';
import type { ResolvedName } from './find-name.ts';
import type { MountContext } from './mount-context.ts';
import type { NewObject } from './new-object.ts';

type PredecessorLookup = (object: NewObject, mark: Time, request: Request) => Promise<ResolvedName | undefined>;

/** Finds the object that a predecessor created for the same request before it crashed. */
export function createPredecessorLookup({ nfs, server }: MountContext, entries: Entries): PredecessorLookup {
  async function findCreatedByPredecessor(
    object: NewObject,
    mark: Time,
    request: Request,
  ): Promise<ResolvedName | undefined> {
    const resolved = await entries.find(object.parent, object.name, request);
    if (resolved === undefined) return undefined;
    const found =
      resolved.attributes ?? (await server.asCallerOnly(request, (options) => nfs.getattr(resolved.handle, options)));
    if (found.type !== object.type) return undefined;
    if (object.target !== undefined)
      return (await hasTarget(object.target, resolved.handle, request))
        ? { ...resolved, attributes: found }
        : undefined;
    const current = isMarked(found, mark) ? found : await rereadAttributes(resolved.handle, found, request);
    return current !== undefined && isMarked(current, mark) ? { ...resolved, attributes: current } : undefined;
  }

  /**
   * The server may return attributes cached between the creation and the setting of its time (nfs-ganesha, for up to a
   * minute). A call that could change attributes, but does not, makes the server read its disk.
   */
  async function rereadAttributes(
    handle: FileHandle,
    found: Attributes,
    request: Request,
  ): Promise<Attributes | undefined> {
    const { mode, ctime: seconds, ctimeNs: nanoseconds } = found;
    const ifChangedAt = { seconds, nanoseconds };
    try {
      const change = await server.asCallerOnly(request, async (options) =>
        found.type === fileType.regular
          ? (await nfs.commit(handle, 0, 0, options)).change
          : await nfs.setattr(handle, { mode }, { ...options, ifChangedAt }),
      );
      return change?.after;
    } catch (cause) {
      // The creator is permitted to do this; a refusal means that another client created the object.
      if (cause instanceof NfsError) return undefined;
      throw cause;
    }
  }

  async function hasTarget(target: Buffer, handle: FileHandle, request: Request): Promise<boolean> {
    const found = await server.asCallerOnly(request, (options) => nfs.readlink(handle, options));
    return target.equals(Buffer.from(found as string));
  }

  return findCreatedByPredecessor;
}
