import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Entry, Operations, Request } from '#wire/fuse/operations.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { fileType } from '#wire/nfs3/structures.ts';
import { majorOf, minorOf, typeByBits } from './attr.ts';
import { recordChange } from './attribute-cache.ts';
import type { Entries } from './entries.ts';
import { isSameHandle } from './file-handles.ts';
import type { ResolvedName } from './find-name.ts';
import type { MountContext } from './mount-context.ts';
import { keyOf, type NameCache } from './name-cache.ts';
import { type CreateCall, createRegularFile, type NewObject } from './new-object.ts';
import { createPredecessorLookup } from './predecessor-lookup.ts';

export type CreateOperations = Pick<Operations, 'mkdir' | 'mknod' | 'symlink' | 'link'> & {
  create(
    parent: number,
    name: Buffer,
    options: { flags: number; mode: number },
    request: Request,
  ): Promise<ResolvedName>;
};

export function createCreateOperations(context: MountContext, entries: Entries): CreateOperations {
  const { nfs, nodes, server, attributes, names, creationMarks, proofs, clock } = context;
  const findCreatedByPredecessor = createPredecessorLookup(context, entries);
  const regularFile = createRegularFile(nfs);

  function cacheName(parent: number, name: Buffer, { handle, attributes: found, eventNumber }: ResolvedName): void {
    names.recordOwnChange(parent, keyOf(name), {
      target: { handle, attributes: found },
      at: clock.elapsed(),
      eventNumber,
    });
  }

  async function createOnServer(object: NewObject, request: Request): Promise<ResolvedName> {
    const { parent } = object;
    const proof = proofs.find(request.slot);
    // Check first: without room for a node, the new object could not be reported to the kernel.
    if (proof === undefined && !nodes.hasRoom()) throw new Errno('ENOMEM');
    const { seconds, nanoseconds } = proof?.kind === 'made' ? proof : creationMarks.nextTime();
    const mark = creationMarks.markAt({ seconds, nanoseconds });
    if (proof?.kind === 'made') {
      const made = await findCreatedByPredecessor(object, proof, request);
      if (made !== undefined) return made;
    } else proofs.write(request.slot, { kind: 'made', seconds, nanoseconds });
    const eventNumber = attributes.eventNumber();
    const isSure = proof === undefined && creationMarks.arePreserved === true;
    const call = isSure ? object.create : (object.createExclusively ?? object.create);
    const send = () => server.callOn(request, parent, (directory, options) => call(directory, mark, options));
    try {
      const { handle, attributes: found, change } = await recordChange(attributes, parent, send, (made) => made.change);
      creationMarks.recordServerTime(change?.after);
      if (object.type === fileType.regular) creationMarks.recordCreation(mark, found);
      return { handle, attributes: found, eventNumber };
    } catch (cause) {
      // The call was sent on two connections, and the first may have created it.
      const isDoubtful = isNfsError(cause, 'EXIST') && cause.resent;
      const made = isDoubtful ? await findCreatedByPredecessor(object, mark.time, request) : undefined;
      if (made === undefined) throw cause;
      return made;
    }
  }

  async function createEntry(object: NewObject, request: Request): Promise<Entry> {
    const resolved = await createOnServer(object, request);
    cacheName(object.parent, object.name, resolved);
    return await entries.entry(object.parent, keyOf(object.name), resolved, request);
  }

  return {
    create: async (parent, name, { flags, mode }, request) => {
      const isExclusive = (flags & constants.O_EXCL) !== 0;
      try {
        const resolved = await createOnServer(regularFile(parent, name, mode, isExclusive), request);
        cacheName(parent, name, resolved);
        return resolved;
      } catch (cause) {
        throw isNfsError(cause, 'EXIST') && !isExclusive ? staleName(names, parent, name, cause) : cause;
      }
    },
    mkdir: async (parent, name, mode, request) => {
      const make: CreateCall = (directory, { set }, options) => nfs.mkdir(directory, name, { ...set, mode }, options);
      const entry = await createEntry({ parent, name, type: fileType.directory, create: make }, request);
      // A new directory is empty.
      names.markComplete(entry.node, names.changeCount(entry.node));
      return entry;
    },
    mknod: (parent, name, { mode, rdev }, request) => {
      const type = typeByBits(mode);
      if (type === fileType.regular) return createEntry(regularFile(parent, name, mode, true), request);
      const special = { name, type, major: majorOf(rdev), minor: minorOf(rdev) };
      const make: CreateCall = (directory, { set }, options) =>
        nfs.mknod({ directory, ...special, set: { ...set, mode: mode & 0o7777 } }, options);
      return createEntry({ parent, name, type, create: make }, request);
    },
    symlink: (parent, name, target, request) =>
      createEntry(
        {
          parent,
          name,
          type: fileType.link,
          target,
          // Don't set a time: some servers cannot set it on a link and fail, and it would not identify the link.
          create: (directory, _, options) => nfs.symlink(directory, name, target, {}, options),
        },
        request,
      ),
    link: async (id, parent, name, request) => {
      const { handle } = server.node(id);
      const proof = proofs.find(request.slot);
      if (proof?.kind === 'moved') {
        const found = await entries.find(parent, name, request);
        if (found !== undefined && isSameHandle(found.handle, proof.handle))
          return await entries.entry(parent, keyOf(name), found, request);
      } else proofs.write(request.slot, { kind: 'moved', handle });
      const eventNumber = attributes.eventNumber();
      const send = () =>
        server.callOnTwo(request, id, parent, (file, directory, options) =>
          nfs.link(file, { directory, name }, options),
        );
      const onFile = () =>
        recordChange(attributes, id, send, ({ attributes: after }) => ({ before: undefined, after }));
      const linked = await recordChange(attributes, parent, onFile, ({ change }) => change);
      const resolved = { handle: server.node(id).handle, attributes: linked.attributes, eventNumber };
      cacheName(parent, name, resolved);
      return await entries.entry(parent, keyOf(name), resolved, request);
    },
  };
}

/**
 * Another client created the name between the kernel's lookup and our CREATE. On ESTALE the kernel looks the name up
 * again, checks permissions, and truncates the file if O_TRUNC is set.
 */
function staleName(names: NameCache, parent: number, name: Buffer, cause: unknown): Errno {
  names.drop(parent, keyOf(name));
  return new Errno('ESTALE', cause);
}
