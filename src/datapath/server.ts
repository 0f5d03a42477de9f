import type { Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import type { AttributeCache } from './attribute-cache.ts';
import type { Calls } from './calls.ts';
import { access, type Caller, type Identities, type Rights } from './identity.ts';
import type { NameCache } from './name-cache.ts';
import { openerOf } from './open-files.ts';
import type { Node, Nodes } from './ports.ts';
import { createSeenNodes, type SeenNode } from './seen-nodes.ts';
import { type CallOnOne, createServerCalls } from './server-calls.ts';
import { createServerRecovery, hasSameRights } from './server-recovery.ts';

type CallOnTwo<R> = (one: FileHandle, other: FileHandle, options: CallOptions) => Promise<R>;

/** The NFS server as one mount sees it: calls on nodes, on behalf of a request. */
export interface Server {
  node(id: number): Node;
  /** `needs`: one of `access`; default: the right to change names in a directory. */
  callOn<R>(request: Request, id: number, call: CallOnOne<R>, needs?: number, caller?: Caller): Promise<R>;
  /**
   * Calls through an open file with its opener's identity, which the kernel checked at open. Uses the file's current
   * group: if another process changes the group, a reader can continue and no acknowledged data are lost.
   */
  callOnOpenFile<R>(request: Request, id: number, fh: number, call: CallOnOne<R>, needs: number): Promise<R>;
  /** For two directories. `isChecked` false: the first is a file that the kernel has not checked the caller for. */
  callOnTwo<R>(request: Request, one: number, other: number, call: CallOnTwo<R>, isChecked?: boolean): Promise<R>;
  /** For an object unknown to the kernel: the caller alone, without any object's group. */
  asCallerOnly<R>(request: Request, call: (options: CallOptions) => Promise<R>): Promise<R>;
  /** Gets the attributes of a node from the server. */
  getattr(request: Request, id: number): Promise<Attributes>;
  /** Records where a node was seen last; the key has one character per byte of the name. */
  recordSeen(id: number, parent: number, key: string): void;
  markDirectory(id: number): void;
  /** At most `most` nodes, least recently seen first. */
  leastRecentlySeen(maxCount: number): readonly SeenNode[];
  forget(id: number): void;
}

export interface ServerParts {
  readonly nfs: NfsClient;
  readonly nodes: Nodes;
  readonly attributes: AttributeCache;
  readonly names: Pick<NameCache, 'drop'>;
  readonly identities: Identities;
  readonly calls: Calls;
  /** Sends a notification to the kernel. */
  readonly notify: (bytes: Buffer) => void;
}

export function createServer(parts: ServerParts): Server {
  const { attributes, identities, calls } = parts;
  const seenNodes = createSeenNodes();
  const serverCalls = createServerCalls(parts);
  const { node, callAs, getattr, asCallerOnly } = serverCalls;
  const recovery = createServerRecovery(parts, serverCalls, seenNodes);

  function callOn<R>(
    request: Request,
    id: number,
    call: CallOnOne<R>,
    needs: number = access.change,
    caller: Caller = request,
  ): Promise<R> {
    const once = (): Promise<R> =>
      callAs(request, identities.credential(caller, needs, attributes.kernelRights(id)), id, call);
    return once().catch((cause: unknown) => recovery.retry(request, [id], needs, cause, once));
  }

  function callOnOpenFile<R>(request: Request, id: number, fh: number, call: CallOnOne<R>, needs: number): Promise<R> {
    const once = (rights: Rights | undefined): Promise<R> =>
      callAs(request, identities.credential(openerOf(fh, request, rights), needs, rights), id, call);
    const rights = attributes.lastSeen(id);
    return once(rights).catch(async (cause: unknown) => {
      if (!isNfsError(cause, 'ACCES')) return await recovery.retry(request, [id], needs, cause, () => once(rights));
      const current = await recovery.readAttributes(request, id);
      if (hasSameRights(rights, current)) throw cause;
      return await once(current);
    });
  }

  return {
    node,
    recordSeen: seenNodes.recordSeen,
    markDirectory: seenNodes.markDirectory,
    leastRecentlySeen: seenNodes.leastRecentlySeen,
    forget: seenNodes.forget,
    callOn,
    callOnOpenFile,
    asCallerOnly,
    callOnTwo: (request, one, other, call, isChecked = true) => {
      const first = () => (isChecked ? attributes.kernelRights(one) : undefined);
      const credential = () => identities.credential(request, access.change, first(), attributes.kernelRights(other));
      const once = () =>
        calls.call(request, credential(), (options) => call(node(one).handle, node(other).handle, options));
      return once().catch((cause: unknown) => recovery.retry(request, [one, other], access.change, cause, once));
    },
    getattr: async (request, id) => {
      const eventNumber = attributes.eventNumber();
      const found = await getattr(request, id).catch((cause: unknown) =>
        recovery.retry(request, [id], access.none, cause, () => getattr(request, id)),
      );
      return attributes.update(id, found, eventNumber);
    },
  };
}
