import type { AttrReply, Operations, Request } from '#wire/fuse/operations.ts';
import type { MountContext } from './mount-context.ts';
import type { Writes } from './writes.ts';

export function createGetattr(
  { server, attributes, sequence }: MountContext,
  writes: Pick<Writes, 'waitUntilAnswered'>,
): Pick<Operations, 'getattr'> {
  const isKnown = (id: number, request: Request): boolean =>
    attributes.freshMs(id) > 0 || sequence.wasJustLookedUp(id, request);

  async function getattrFromServer(
    id: number,
    settled: Promise<void> | undefined,
    request: Request,
  ): Promise<AttrReply> {
    await settled;
    if (!isKnown(id, request)) await server.getattr(request, id);
    return attributes.attrReply(id);
  }

  return {
    getattr: (id, _fh, request) => {
      const settled = writes.waitUntilAnswered(id, request);
      // No promise if cached: the kernel asks for a directory's attributes after each change of it.
      return settled === undefined && isKnown(id, request)
        ? attributes.attrReply(id)
        : getattrFromServer(id, settled, request);
    },
  };
}
