import { Errno } from '#wire/fuse/errno.ts';
import { invalidateInode } from '#wire/fuse/notify.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import { isStale } from './errors.ts';
import { isSameHandle } from './file-handles.ts';
import { access, areSameRights, type Rights } from './identity.ts';
import { maxDepth, type SeenNodes } from './seen-nodes.ts';
import type { ServerParts } from './server.ts';
import type { ServerCalls } from './server-calls.ts';
import { isUnchanged } from './wcc-chain.ts';

/** Recovers from stale handles and outdated rights after a failed call. */
export interface ServerRecovery {
  /**
   * Retries the call once if the failure was a stale handle or outdated rights, and these are now known. Else throws
   * `cause`.
   */
  retry<R>(request: Request, ids: readonly number[], needs: number, cause: unknown, call: () => Promise<R>): Promise<R>;
  /** Gets the attributes from the server. */
  readAttributes(request: Request, id: number): Promise<Attributes>;
}

export function createServerRecovery(
  { nfs, nodes, attributes, names, identities, notify }: ServerParts,
  { node, callAs, getattr, asCallerOnly }: ServerCalls,
  seenNodes: SeenNodes,
): ServerRecovery {
  /** The handle is stale; the server may have a new one for the same file at the same path. */
  async function refreshHandle(request: Request, id: number, depth: number): Promise<void> {
    const entryKey = seenNodes.get(id);
    const known = attributes.lastSeen(id);
    if (entryKey === undefined || known === undefined || depth > maxDepth) return;
    const name = Buffer.from(entryKey.key, 'latin1');
    const lookup = () => {
      const credential = identities.credential(request, access.search, attributes.kernelRights(entryKey.parent));
      return callAs(request, credential, entryKey.parent, (handle, options) => nfs.lookup(handle, name, options));
    };
    const found = await lookup().catch(async (cause: unknown) => {
      if (!isStale(cause)) throw cause;
      await refreshHandle(request, entryKey.parent, depth + 1);
      return await lookup();
    });
    const eventNumber = attributes.eventNumber();
    const current = found.attributes ?? (await asCallerOnly(request, (options) => nfs.getattr(found.handle, options)));
    // File ids are reused, so more must match.
    if (current.fileId !== known.fileId || current.type !== known.type || !isUnchanged(current, known)) return;
    nodes.changeHandle(id, found.handle);
    attributes.update(id, current, eventNumber);
  }

  /** The directories of the path may have been replaced, too. */
  function dropPath(id: number): void {
    for (const { parent, key } of seenNodes.path(id)) names.drop(parent, key);
  }

  async function readAttributes(request: Request, id: number): Promise<Attributes> {
    const eventNumber = attributes.eventNumber();
    const found = await getattr(request, id);
    attributes.update(id, found, eventNumber);
    return found;
  }

  /**
   * The server rejects a call that the kernel permitted, perhaps by outdated rights. Makes the kernel read the rights
   * and decide again. True: the kernel's rights were unknown after a crash; from now on, assume those found.
   */
  async function refreshRights(
    request: Request,
    ids: readonly number[],
    needs: number,
    cause: unknown,
  ): Promise<boolean> {
    let [isNew, isOutdated] = [false, false];
    for (const id of ids) {
      const before = attributes.kernelRights(id);
      const isKnownToKernel = attributes.kernelView(id).rights !== undefined;
      if (hasSameRights(before, await readAttributes(request, id))) continue;
      notify(invalidateInode(id));
      if (isKnownToKernel) isOutdated = true;
      else isNew = true;
    }
    // The kernel does not look an open directory up again.
    if (isOutdated && needs !== access.list) throw new Errno('ESTALE', cause);
    return isNew && !isOutdated;
  }

  /** True: a node has a new handle. */
  async function refreshHandles(request: Request, ids: readonly number[]): Promise<boolean> {
    const before = ids.map((id) => node(id).handle);
    for (const id of ids) await refreshHandle(request, id, 0).catch(() => undefined);
    if (ids.some((id, i) => !isSameHandle(node(id).handle, before[i] as FileHandle))) return true;
    // The kernel will look the names up again: it must not find the same cached entries.
    for (const id of ids) dropPath(id);
    return false;
  }

  async function retry<R>(
    request: Request,
    ids: readonly number[],
    needs: number,
    cause: unknown,
    call: () => Promise<R>,
  ): Promise<R> {
    if (isNfsError(cause, 'ACCES') && (await refreshRights(request, ids, needs, cause))) return await call();
    if (isStale(cause) && (await refreshHandles(request, ids))) return await call();
    throw cause;
  }

  return { retry, readAttributes };
}

export const hasSameRights = (before: Rights | undefined, now: Rights): boolean =>
  before !== undefined && areSameRights(before, now);
