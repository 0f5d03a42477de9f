import { renameFlag } from '#wire/fuse/abi.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { recordChange } from './attribute-cache.ts';
import type { Context } from './context.ts';
import type { Entries } from './entries.ts';
import { isSame } from './file-handles.ts';
import type { ResolvedName } from './find-name.ts';
import { type EntryName, withoutDeadline } from './hidden-name-calls.ts';
import { keyOf } from './name-cache.ts';
import type { Charges } from './quota/charges.ts';
import { copyEntryName, type NameRemoval } from './silly-rename.ts';
import type { UnlinkOperations } from './unlink.ts';

/** NFSv3 cannot exchange two names or refuse to replace one atomically. */
const impossible = renameFlag.noReplace | renameFlag.exchange | renameFlag.whiteout;

export function createRename(
  context: Context,
  entries: Entries,
  unlinking: UnlinkOperations,
  charges: Pick<Charges, 'spaceToFree' | 'removed'>,
): Pick<Operations, 'rename'> {
  const { nfs, nodes, server, attributes, names, proofs, clock, releases } = context;

  /** The object to rename. Undefined: a predecessor has already renamed it. */
  async function source(from: EntryName, to: EntryName, request: Request): Promise<ResolvedName | undefined> {
    const before = proofs.find(request.slot);
    if (before?.kind === 'moved') {
      const there = await entries.find(to.parent, to.name, request);
      if (there !== undefined && isSame(there.handle, before.handle)) return undefined;
      // It is at neither name: it was renamed, and then changed again by another client. The old name may belong to
      // another object now.
      const current = await entries.find(from.parent, from.name, request);
      return current !== undefined && isSame(current.handle, before.handle) ? current : undefined;
    }
    const { parent, name } = from;
    const there =
      (await entries.resolveAsKernelKnows(parent, name, request)) ?? (await entries.find(parent, name, request));
    if (there === undefined) throw new Errno('ENOENT');
    proofs.write(request.slot, { kind: 'moved', handle: there.handle });
    return there;
  }

  /** `isHidden`: the replaced object may have lost its name already, so the call must not be given up half-way. */
  async function move(
    from: EntryName,
    to: EntryName,
    { handle: meant }: ResolvedName,
    request: Request,
    isHidden = false,
  ): Promise<void> {
    const send = () =>
      server.callOnTwo(request, from.parent, to.parent, (one, other, options) =>
        nfs.rename(
          { directory: one, name: from.name },
          { directory: other, name: to.name },
          { ...(isHidden ? withoutDeadline(options) : options), expected: meant },
        ),
      );
    // Within one directory both report the same change.
    const within = () => recordChange(attributes, to.parent, send, (renamed) => renamed.to);
    if (from.parent === to.parent) await within();
    else await recordChange(attributes, from.parent, within, (renamed) => renamed.from);
  }

  /** Updates the cached names after the rename. */
  function remember(from: EntryName, to: EntryName, moved: ResolvedName, replaced: ResolvedName | undefined): void {
    const known = { at: clock.elapsed(), since: attributes.now() };
    const id = nodes.find(moved.handle)?.id;
    if (id !== undefined) {
      attributes.expire(id);
      server.seen(id, to.parent, keyOf(to.name));
    }
    const replacedId = replaced === undefined ? undefined : nodes.find(replaced.handle)?.id;
    if (replacedId !== undefined) attributes.expire(replacedId);
    names.set(from.parent, keyOf(from.name), { ...known, meant: undefined });
    names.set(to.parent, keyOf(to.name), { ...known, meant: { handle: moved.handle, attributes: undefined } });
  }

  return {
    rename: async (old, next, flags, request) => {
      if ((flags & impossible) !== 0) throw new Errno('EINVAL');
      // If an open file is replaced, the work continues after the request is answered and its memory reused.
      const [from, to] = [copyEntryName(old), copyEntryName(next)];
      const moved = await source(from, to, request);
      if (moved === undefined) return;
      const replaced = await entries.resolveAsKernelKnows(to.parent, to.name, request);
      if (replaced !== undefined && isSame(replaced.handle, moved.handle)) {
        // Two links of one file: POSIX says that nothing happens and both stay.
        await move(from, to, moved, request);
        names.drop(from.parent, keyOf(from.name));
        names.drop(to.parent, keyOf(to.name));
        return;
      }
      const take: NameRemoval['take'] = async (isHidden, itself) => {
        const replacedId = replaced === undefined || isHidden ? undefined : nodes.find(replaced.handle)?.id;
        const leaves = await charges.spaceToFree(replacedId, itself);
        try {
          await move(from, to, moved, itself, isHidden);
        } catch (cause) {
          throw isNfsError(cause, 'EXIST') ? new Errno('ENOTEMPTY', cause) : cause;
        }
        charges.removed(replacedId, leaves);
        remember(from, to, moved, replaced);
      };
      if (replaced === undefined) return await take(false, request);
      await releases.waitForHidden(replaced.handle, request);
      await unlinking.removeName({ at: to, there: replaced, isReplaced: true, take }, request);
    },
  };
}
