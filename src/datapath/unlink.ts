import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { recordChange } from './attribute-cache.ts';
import type { Entries } from './entries.ts';
import { isSameHandle } from './file-handles.ts';
import type { ResolvedName } from './find-name.ts';
import type { EntryName } from './hidden-name-calls.ts';
import type { MountContext } from './mount-context.ts';
import { keyOf } from './name-cache.ts';
import {
  copyEntryName,
  createSillyRename,
  type NameRemoval,
  type RemoveCall,
  type SillyRename,
  type SillyRenameParts,
} from './silly-rename.ts';

export interface UnlinkOperations extends Pick<Operations, 'unlink' | 'rmdir'>, SillyRename {}

export type UnlinkParts = Pick<SillyRenameParts, 'charges' | 'ready'>;

export function createUnlink(
  context: MountContext,
  entries: Entries,
  { charges, ready }: UnlinkParts,
): UnlinkOperations {
  const { nfs, nodes, server, attributes, names, proofs, clock, releases } = context;

  const recordAbsent = ({ parent, name }: EntryName): void =>
    names.recordOwnChange(parent, keyOf(name), {
      target: undefined,
      at: clock.elapsed(),
      eventNumber: attributes.eventNumber(),
    });

  /** The object to remove. Undefined: a predecessor has already removed it. */
  async function findTarget(parent: number, name: Buffer, request: Request): Promise<ResolvedName | undefined> {
    const proof = proofs.find(request.slot);
    if (proof?.kind === 'gone') {
      const found = await entries.find(parent, name, request);
      return found !== undefined && isSameHandle(found.handle, proof.handle) ? found : undefined;
    }
    const resolved =
      (await entries.resolveAsKernelKnows(parent, name, request)) ?? (await entries.find(parent, name, request));
    if (resolved === undefined) throw new Errno('ENOENT');
    proofs.write(request.slot, { kind: 'gone', handle: resolved.handle });
    return resolved;
  }

  async function remove({ parent, name }: EntryName, request: Request, call: RemoveCall): Promise<void> {
    const send = () => server.callOn(request, parent, (directory, options) => call({ directory, name }, options));
    await recordChange(attributes, parent, send, (change) => change);
    recordAbsent({ parent, name });
  }

  const sillyRename = createSillyRename(context, { charges, ready, remove, recordAbsent });

  return {
    ...sillyRename,
    unlink: async (parent, name, request) => {
      const resolved = await findTarget(parent, name, request);
      if (resolved === undefined) return;
      const entryName = copyEntryName({ parent, name });
      const perform: NameRemoval['perform'] = async (isHidden) => {
        if (isHidden) return;
        const id = nodes.find(resolved.handle)?.id;
        const before = await charges.spaceToFree(id, request);
        await remove(entryName, request, (place, options) =>
          nfs.remove(place.directory, place.name, { ...options, expected: resolved.handle }),
        );
        charges.recordRemoval(id, before);
      };
      await sillyRename.removeName({ entryName, resolved, isReplaced: false, perform }, request);
    },
    rmdir: async (parent, name, request) => {
      const resolved = await findTarget(parent, name, request);
      if (resolved === undefined) return;
      await releases.waitForHiddenNames(resolved.handle, request);
      try {
        await remove({ parent, name }, request, ({ directory }, options) =>
          nfs.rmdir(directory, name, { ...options, expected: resolved.handle }),
        );
      } catch (cause) {
        throw isNfsError(cause, 'EXIST') ? new Errno('ENOTEMPTY', cause) : cause;
      }
      const id = nodes.find(resolved.handle)?.id;
      if (id !== undefined) attributes.expire(id);
    },
  };
}
