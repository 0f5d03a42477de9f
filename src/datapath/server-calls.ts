import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { access } from './identity.ts';
import type { Node } from './ports.ts';
import type { Server, ServerParts } from './server.ts';

export type CallOnOne<R> = (handle: FileHandle, options: CallOptions) => Promise<R>;

/** Calls on nodes, without recovery from stale handles and outdated rights. */
export interface ServerCalls extends Pick<Server, 'node' | 'asCallerOnly'> {
  callAs<R>(request: Request, credential: Buffer, id: number, call: CallOnOne<R>): Promise<R>;
  getattr(request: Request, id: number): Promise<Attributes>;
}

export function createServerCalls({
  nfs,
  nodes,
  identities,
  calls,
}: Pick<ServerParts, 'nfs' | 'nodes' | 'identities' | 'calls'>): ServerCalls {
  function node(id: number): Node {
    const found = nodes.get(id);
    if (found === undefined) throw new Errno('ESTALE');
    return found;
  }

  const callAs = <R>(request: Request, credential: Buffer, id: number, call: CallOnOne<R>): Promise<R> =>
    calls.call(request, credential, (options) => call(node(id).handle, options));

  const getattr = (request: Request, id: number): Promise<Attributes> =>
    callAs(request, identities.credential(request, access.none), id, (handle, options) => nfs.getattr(handle, options));

  const asCallerOnly: Server['asCallerOnly'] = (request, call) =>
    calls.call(request, identities.credential(request, access.none), call);

  return { node, callAs, getattr, asCallerOnly };
}
