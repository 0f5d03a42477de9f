import { Errno } from '#wire/fuse/errno.ts';
import type { Operations } from '#wire/fuse/operations.ts';
import { access } from './identity.ts';
import type { MountContext } from './mount-context.ts';

/** The kernel's limit for link targets. */
const maxTargetBytes = 4095;

export function createReadlink({ nfs, server }: MountContext): Operations['readlink'] {
  return async (id, request) => {
    const target = await server.callOn(request, id, (handle, options) => nfs.readlink(handle, options), access.list);
    const bytes = typeof target === 'string' ? Buffer.from(target) : target;
    if (bytes.length > maxTargetBytes) throw new Errno('ENAMETOOLONG');
    return bytes;
  };
}
