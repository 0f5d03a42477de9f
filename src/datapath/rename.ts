import { renameFlag } from '#wire/fuse/abi.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { recordChange } from './attribute-cache.ts';
import type { Entries } from './entries.ts';
import { isSameHandle } from './file-handles.ts';
import type { ResolvedName } from './find-name.ts';
import { type EntryName, withoutDeadline } from './hidden-name-calls.ts';
import type { MountContext } from './mount-context.ts';
import { keyOf } from './name-cache.ts';
import type { Charges } from './quota/charges.ts';
import { copyEntryName, type NameRemoval } from './silly-rename.ts';
import type { UnlinkOperations } from './unlink.ts';

/** NFSv3 cannot exchange two names or refuse to replace one atomically. */
const unsupportedFlags = renameFlag.noReplace | renameFlag.exchange | renameFlag.whiteout;

export function createRename(
  context: MountContext,
  entries: Entries,
  unlinking: UnlinkOperations,
  charges: Pick<Charges, 'spaceToFree' | 'recordRemoval'>,
): Pick<Operations, 'rename'> {
  const { nfs, nodes, server, attributes, names, proofs, clock, releases } = context;

  /** The object to rename. Undefined: a predecessor has already renamed it. */
  async function findSource(from: EntryName, to: EntryName, request: Request): Promise<ResolvedName | undefined> {
    const proof = proofs.find(request.slot);
    if (proof?.kind === 'moved') {
      const found = await entries.find(to.parent, to.name, request);
      if (found !== undefined && isSameHandle(found.handle, proof.handle)) return undefined;
      // The object has neither name: the rename was executed, and then another client changed the names again. The old
      // name may belong to another object now.
      const current = await entries.find(from.parent, from.name, request);
      return current !== undefined && isSameHandle(current.handle, proof.handle) ? current : undefined;
    }
    const { parent, name } = from;
    const resolved =
      (await entries.resolveAsKernelKnows(parent, name, request)) ?? (await entries.find(parent, name, request));
    if (resolved === undefined) throw new Errno('ENOENT');
    proofs.write(request.slot, { kind: 'moved', handle: resolved.handle });
    return resolved;
  }

  /** `isHidden`: the replaced object may already have lost its name, so the call has no deadline. */
  async function renameOnServer(
    from: EntryName,
    to: EntryName,
    { handle: expected }: ResolvedName,
    request: Request,
    isHidden = false,
  ): Promise<void> {
    const send = () =>
      server.callOnTwo(request, from.parent, to.parent, (one, other, options) =>
        nfs.rename(
          { directory: one, name: from.name },
          { directory: other, name: to.name },
          { ...(isHidden ? withoutDeadline(options) : options), expected },
        ),
      );
    // If both names are in one directory, the server reports the same change twice.
    const recordTarget = () => recordChange(attributes, to.parent, send, (renamed) => renamed.to);
    if (from.parent === to.parent) await recordTarget();
    else await recordChange(attributes, from.parent, recordTarget, (renamed) => renamed.from);
  }

  /** Updates the cached names after the rename. */
  function updateNames(from: EntryName, to: EntryName, moved: ResolvedName, replaced: ResolvedName | undefined): void {
    const known = { at: clock.elapsed(), eventNumber: attributes.eventNumber() };
    const id = nodes.find(moved.handle)?.id;
    if (id !== undefined) {
      attributes.expire(id);
      server.recordSeen(id, to.parent, keyOf(to.name));
    }
    const replacedId = replaced === undefined ? undefined : nodes.find(replaced.handle)?.id;
    if (replacedId !== undefined) attributes.expire(replacedId);
    names.recordOwnChange(from.parent, keyOf(from.name), { ...known, target: undefined });
    names.recordOwnChange(to.parent, keyOf(to.name), {
      ...known,
      target: { handle: moved.handle, attributes: undefined },
    });
  }

  return {
    rename: async (oldName, newName, flags, request) => {
      if ((flags & unsupportedFlags) !== 0) throw new Errno('EINVAL');
      // If an open file is replaced, the work continues after the request is answered and its memory reused.
      const [from, to] = [copyEntryName(oldName), copyEntryName(newName)];
      const moved = await findSource(from, to, request);
      if (moved === undefined) return;
      const replaced = await entries.resolveAsKernelKnows(to.parent, to.name, request);
      if (replaced !== undefined && isSameHandle(replaced.handle, moved.handle)) {
        // Two links of one file: POSIX says that nothing happens and both stay.
        await renameOnServer(from, to, moved, request);
        names.drop(from.parent, keyOf(from.name));
        names.drop(to.parent, keyOf(to.name));
        return;
      }
      const perform: NameRemoval['perform'] = async (isHidden, ownRequest) => {
        const replacedId = replaced === undefined || isHidden ? undefined : nodes.find(replaced.handle)?.id;
        const spaceToFree = await charges.spaceToFree(replacedId, ownRequest);
        try {
          await renameOnServer(from, to, moved, ownRequest, isHidden);
        } catch (cause) {
          throw isNfsError(cause, 'EXIST') ? new Errno('ENOTEMPTY', cause) : cause;
        }
        charges.recordRemoval(replacedId, spaceToFree);
        updateNames(from, to, moved, replaced);
      };
      if (replaced === undefined) return await perform(false, request);
      await releases.waitForHiddenNames(replaced.handle, request);
      await unlinking.removeName({ entryName: to, resolved: replaced, isReplaced: true, perform }, request);
    },
  };
}
