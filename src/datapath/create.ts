import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Entry, Operations, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { fileType } from '#wire/nfs3/structures.ts';
import { majorOf, minorOf, typeByBits } from './attr.ts';
import { recordChange } from './attribute-cache.ts';
import type { Context } from './context.ts';
import type { Entries } from './entries.ts';
import { isSame } from './file-handles.ts';
import type { ResolvedName } from './find-name.ts';
import { keyOf, type NameCache } from './name-cache.ts';
import { type CreateCall, createRegularFile, type NewObject } from './new-object.ts';
import { createPredecessorLookup } from './predecessor-lookup.ts';

export type CreateOperations = Pick<Operations, 'mkdir' | 'mknod' | 'symlink' | 'link'> & {
  create(parent: number, name: Buffer, how: { flags: number; mode: number }, request: Request): Promise<ResolvedName>;
};

export function createCreateOperations(context: Context, entries: Entries): CreateOperations {
  const { nfs, nodes, server, attributes, names, marks, proofs, clock } = context;
  const findMadeByPredecessor = createPredecessorLookup(context, entries);
  const regular = createRegularFile(nfs);

  function remember(parent: number, name: Buffer, there: ResolvedName): void {
    const { handle, since } = there;
    names.set(parent, keyOf(name), { meant: { handle, attributes: there.attributes }, at: clock.elapsed(), since });
  }

  async function createOnServer(what: NewObject, request: Request): Promise<ResolvedName> {
    const { parent } = what;
    const before = proofs.find(request.slot);
    // Check before creating an object that the kernel could not be told of.
    if (before === undefined && !nodes.hasRoom()) throw new Errno('ENOMEM');
    const { seconds, nanoseconds } = before?.kind === 'made' ? before : marks.next();
    const mark = marks.at({ seconds, nanoseconds });
    if (before?.kind === 'made') {
      const made = await findMadeByPredecessor(what, before, request);
      if (made !== undefined) return made;
    } else proofs.write(request.slot, { kind: 'made', seconds, nanoseconds });
    const since = attributes.now();
    const isSure = before === undefined && marks.areKept === true;
    const call = isSure ? what.make : (what.exclusively ?? what.make);
    const send = () => server.callOn(request, parent, (directory, options) => call(directory, mark, options));
    try {
      const { handle, attributes: found, change } = await recordChange(attributes, parent, send, (made) => made.change);
      marks.sawChange(change?.after);
      if (what.type === fileType.regular) marks.made(mark, found);
      return { handle, attributes: found, since };
    } catch (cause) {
      // The call was sent on two connections, and the first may have created it.
      const isDoubtful = isNfsError(cause, 'EXIST') && cause.resent;
      const made = isDoubtful ? await findMadeByPredecessor(what, mark.time, request) : undefined;
      if (made === undefined) throw cause;
      return made;
    }
  }

  async function createEntry(what: NewObject, request: Request): Promise<Entry> {
    const there = await createOnServer(what, request);
    remember(what.parent, what.name, there);
    return await entries.entry(what.parent, keyOf(what.name), there, request);
  }

  return {
    create: async (parent, name, { flags, mode }, request) => {
      const isExclusive = (flags & constants.O_EXCL) !== 0;
      try {
        const there = await createOnServer(regular(parent, name, mode, isExclusive), request);
        remember(parent, name, there);
        return there;
      } catch (cause) {
        throw isNfsError(cause, 'EXIST') && !isExclusive ? staleName(names, parent, name, cause) : cause;
      }
    },
    mkdir: async (parent, name, mode, request) => {
      const make: CreateCall = (directory, { set }, options) => nfs.mkdir(directory, name, { ...set, mode }, options);
      const entry = await createEntry({ parent, name, type: fileType.directory, make }, request);
      // A new directory is empty.
      names.complete(entry.node, names.changes(entry.node));
      return entry;
    },
    mknod: (parent, name, { mode, rdev }, request) => {
      const type = typeByBits(mode);
      if (type === fileType.regular) return createEntry(regular(parent, name, mode, true), request);
      const special = { name, type, major: majorOf(rdev), minor: minorOf(rdev) };
      const make: CreateCall = (directory, { set }, options) =>
        nfs.mknod({ directory, ...special, set: { ...set, mode: mode & 0o7777 } }, options);
      return createEntry({ parent, name, type, make }, request);
    },
    symlink: (parent, name, target, request) =>
      createEntry(
        {
          parent,
          name,
          type: fileType.link,
          target,
          // Without a time: a server that cannot set it fails, and it would prove nothing.
          make: (directory, _, options) => nfs.symlink(directory, name, target, {}, options),
        },
        request,
      ),
    link: async (id, parent, name, request) => {
      const { handle } = server.node(id);
      const before = proofs.find(request.slot);
      if (before?.kind === 'moved') {
        const there = await entries.find(parent, name, request);
        if (there !== undefined && isSame(there.handle, before.handle))
          return await entries.entry(parent, keyOf(name), there, request);
      } else proofs.write(request.slot, { kind: 'moved', handle });
      const since = attributes.now();
      const send = () =>
        server.callOnTwo(request, id, parent, (file, directory, options) =>
          nfs.link(file, { directory, name }, options),
        );
      const onFile = () =>
        recordChange(attributes, id, send, ({ attributes: after }) => ({ before: undefined, after }));
      const linked = await recordChange(attributes, parent, onFile, ({ change }) => change);
      const there = { handle: server.node(id).handle, attributes: linked.attributes, since };
      remember(parent, name, there);
      return await entries.entry(parent, keyOf(name), there, request);
    },
  };
}

/**
 * Another client created it between the kernel's lookup and ours. On ESTALE the kernel looks it up again, checks
 * permissions and truncates it if asked to.
 */
function staleName(names: NameCache, parent: number, name: Buffer, cause: unknown): Errno {
  names.drop(parent, keyOf(name));
  return new Errno('ESTALE', cause);
}
