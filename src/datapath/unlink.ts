import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { recordChange } from './attribute-cache.ts';
import type { Context } from './context.ts';
import type { Entries } from './entries.ts';
import { isSame } from './file-handles.ts';
import type { ResolvedName } from './find-name.ts';
import type { EntryName } from './hidden-name-calls.ts';
import { keyOf } from './name-cache.ts';
import {
  type CallOnPlace,
  copyEntryName,
  createSillyRename,
  type NameRemoval,
  type SillyRename,
  type SillyRenameParts,
} from './silly-rename.ts';

export interface UnlinkOperations extends Pick<Operations, 'unlink' | 'rmdir'>, SillyRename {}

export type UnlinkParts = Pick<SillyRenameParts, 'charges' | 'ready'>;

export function createUnlink(context: Context, entries: Entries, { charges, ready }: UnlinkParts): UnlinkOperations {
  const { nfs, nodes, server, attributes, names, proofs, clock, releases } = context;

  const recordAbsent = ({ parent, name }: EntryName): void =>
    names.set(parent, keyOf(name), { meant: undefined, at: clock.elapsed(), since: attributes.now() });

  /** The object to remove. Undefined: a predecessor has already removed it. */
  async function target(parent: number, name: Buffer, request: Request): Promise<ResolvedName | undefined> {
    const before = proofs.find(request.slot);
    if (before?.kind === 'gone') {
      const there = await entries.find(parent, name, request);
      return there !== undefined && isSame(there.handle, before.handle) ? there : undefined;
    }
    const there =
      (await entries.resolveAsKernelKnows(parent, name, request)) ?? (await entries.find(parent, name, request));
    if (there === undefined) throw new Errno('ENOENT');
    proofs.write(request.slot, { kind: 'gone', handle: there.handle });
    return there;
  }

  async function remove({ parent, name }: EntryName, request: Request, call: CallOnPlace): Promise<void> {
    const send = () => server.callOn(request, parent, (directory, options) => call({ directory, name }, options));
    await recordChange(attributes, parent, send, (change) => change);
    recordAbsent({ parent, name });
  }

  const sillyRename = createSillyRename(context, { charges, ready, remove, recordAbsent });

  return {
    ...sillyRename,
    unlink: async (parent, name, request) => {
      const there = await target(parent, name, request);
      if (there === undefined) return;
      const at = copyEntryName({ parent, name });
      const take: NameRemoval['take'] = async (isHidden) => {
        if (isHidden) return;
        const id = nodes.find(there.handle)?.id;
        const before = await charges.spaceToFree(id, request);
        await remove(at, request, (place, options) =>
          nfs.remove(place.directory, place.name, { ...options, expected: there.handle }),
        );
        charges.removed(id, before);
      };
      await sillyRename.removeName({ at, there, isReplaced: false, take }, request);
    },
    rmdir: async (parent, name, request) => {
      const there = await target(parent, name, request);
      if (there === undefined) return;
      await releases.waitForHidden(there.handle, request);
      try {
        await remove({ parent, name }, request, ({ directory }, options) =>
          nfs.rmdir(directory, name, { ...options, expected: there.handle }),
        );
      } catch (cause) {
        throw isNfsError(cause, 'EXIST') ? new Errno('ENOTEMPTY', cause) : cause;
      }
      const id = nodes.find(there.handle)?.id;
      if (id !== undefined) attributes.expire(id);
    },
  };
}
