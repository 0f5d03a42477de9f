import type { Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { access } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import { keyOf } from './name-cache.ts';

/** The object of a name, as the server returned it. */
export interface ResolvedName {
  readonly handle: FileHandle;
  readonly attributes: Attributes | undefined;
  readonly eventNumber: number;
}

type FindName = (parent: number, name: Buffer, request: Request) => Promise<ResolvedName | undefined>;

/** Looks names up on the server. Undefined: absent. */
export function createFindName({ nfs, server, attributes, names, clock }: MountContext): FindName {
  return async (parent, name, request) => {
    const key = keyOf(name);
    const eventNumber = attributes.eventNumber();
    const changes = names.changeCount(parent);
    // Absence is not an error: throwing through all layers would take longer than the call.
    const lookup = (handle: FileHandle, options: CallOptions) =>
      nfs.lookup(handle, name, options).catch(ignoreNotFound);
    const found = await server.callOn(request, parent, lookup, access.search);
    names.put(parent, key, { target: found, at: clock.elapsed(), eventNumber }, changes);
    if (found === undefined) return undefined;
    if (found.directory !== undefined) attributes.update(parent, found.directory, eventNumber);
    return { handle: found.handle, attributes: found.attributes, eventNumber };
  };
}

function ignoreNotFound(cause: unknown): undefined {
  if (!isNfsError(cause, 'NOENT')) throw cause;
}
