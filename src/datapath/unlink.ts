import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { changing } from './attribute-cache.ts';
import type { Context } from './context.ts';
import type { Entries, There } from './entries.ts';
import { keyOf } from './name-cache.ts';
import { isSame } from './server.ts';
import {
  type At,
  type CallOnPlace,
  copied,
  createHiding,
  type Hiding,
  type HidingParts,
  type Taking,
} from './silly-rename.ts';

export interface Removing extends Pick<Operations, 'unlink' | 'rmdir'>, Hiding {}

export type RemovingParts = Pick<HidingParts, 'charges' | 'ready'>;

export function createRemoving(context: Context, entries: Entries, { charges, ready }: RemovingParts): Removing {
  const { nfs, nodes, server, attributes, names, proofs, clock, closing } = context;

  const gone = ({ parent, name }: At): void =>
    names.set(parent, keyOf(name), { meant: undefined, at: clock.elapsed(), since: attributes.now() });

  /** What the request removes. Undefined: a predecessor has removed it already. */
  async function target(parent: number, name: Buffer, request: Request): Promise<There | undefined> {
    const before = proofs.find(request.place);
    if (before?.kind === 'gone') {
      const there = await entries.find(parent, name, request);
      return there !== undefined && isSame(there.handle, before.handle) ? there : undefined;
    }
    const there = (await entries.meant(parent, name, request)) ?? (await entries.find(parent, name, request));
    if (there === undefined) throw new Errno('ENOENT');
    proofs.write(request.place, { kind: 'gone', handle: there.handle });
    return there;
  }

  async function remove({ parent, name }: At, request: Request, call: CallOnPlace): Promise<void> {
    const send = () => server.on(request, parent, (directory, options) => call({ directory, name }, options));
    await changing(attributes, parent, send, (change) => change);
    gone({ parent, name });
  }

  const hiding = createHiding(context, { charges, ready, remove, gone });

  return {
    ...hiding,
    unlink: async (parent, name, request) => {
      const there = await target(parent, name, request);
      if (there === undefined) return;
      const at = copied({ parent, name });
      const take: Taking['take'] = async (isHidden) => {
        if (isHidden) return;
        const id = nodes.find(there.handle)?.id;
        const before = await charges.leaving(id, request);
        await remove(at, request, (place, options) =>
          nfs.remove(place.directory, place.name, { ...options, meant: there.handle }),
        );
        charges.removed(id, before);
      };
      await hiding.takeName({ at, there, isReplaced: false, take }, request);
    },
    rmdir: async (parent, name, request) => {
      const there = await target(parent, name, request);
      if (there === undefined) return;
      await closing.gone(there.handle, request);
      try {
        await remove({ parent, name }, request, ({ directory }, options) =>
          nfs.rmdir(directory, name, { ...options, meant: there.handle }),
        );
      } catch (cause) {
        throw isNfsError(cause, 'EXIST') ? new Errno('ENOTEMPTY', cause) : cause;
      }
      const id = nodes.find(there.handle)?.id;
      if (id !== undefined) attributes.expire(id);
    },
  };
}
