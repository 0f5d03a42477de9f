import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Entry, Operations, Request } from '#wire/fuse/operations.ts';
import type { Created } from '#wire/nfs3/client.ts';
import { isNfsError, NfsError } from '#wire/nfs3/status.ts';
import { type Attributes, type FileHandle, fileType, type Time } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { majorOf, minorOf, typeByBits } from './attr.ts';
import { recordChange } from './attribute-cache.ts';
import type { Context } from './context.ts';
import { type CreationMark, isMarked, verifierOf } from './creation-marks.ts';
import type { Entries, ResolvedName } from './entries.ts';
import { isSame } from './file-handles.ts';
import { keyOf } from './name-cache.ts';

/** Creates an object with a time by which it is recognized. */
type Make = (directory: FileHandle, mark: CreationMark, options: CallOptions) => Promise<Created>;

interface NewObject {
  readonly parent: number;
  readonly name: Buffer;
  /** One of `fileType`. */
  readonly type: number;
  readonly make: Make;
  /** Used if the server may not keep the time, or if the object may already have been created. */
  readonly exclusively?: Make | undefined;
  /** For a symbolic link: servers do not keep our time for it, so it is recognized by its target. */
  readonly target?: Buffer;
}

export type CreateOperations = Pick<Operations, 'mkdir' | 'mknod' | 'symlink' | 'link'> & {
  create(parent: number, name: Buffer, how: { flags: number; mode: number }, request: Request): Promise<ResolvedName>;
};

export function createCreateOperations(context: Context, entries: Entries): CreateOperations {
  const { nfs, nodes, server, attributes, names, marks, proofs, clock } = context;
  /** False once the server has refused EXCLUSIVE. */
  let hasExclusive = true;

  function remember(parent: number, name: Buffer, there: ResolvedName): void {
    const { handle, since } = there;
    names.set(parent, keyOf(name), { meant: { handle, attributes: there.attributes }, at: clock.elapsed(), since });
  }

  /** The object that a predecessor created for the same request before it crashed. */
  async function findMadeByPredecessor(
    what: NewObject,
    mark: Time,
    request: Request,
  ): Promise<ResolvedName | undefined> {
    const there = await entries.find(what.parent, what.name, request);
    if (there === undefined) return undefined;
    const found =
      there.attributes ?? (await server.asCallerOnly(request, (options) => nfs.getattr(there.handle, options)));
    if (found.type !== what.type) return undefined;
    if (what.target !== undefined)
      return (await hasTarget(what.target, there.handle, request)) ? { ...there, attributes: found } : undefined;
    const sure = isMarked(found, mark) ? found : await rereadAttributes(there.handle, found, request);
    return sure !== undefined && isMarked(sure, mark) ? { ...there, attributes: sure } : undefined;
  }

  /**
   * The server may return attributes cached between the creation and the setting of its time (nfs-ganesha, for up to a
   * minute). A call that could have changed something, but does not, makes it read its disk.
   */
  async function rereadAttributes(
    handle: FileHandle,
    found: Attributes,
    request: Request,
  ): Promise<Attributes | undefined> {
    const { mode, ctime: seconds, ctimeNs: nanoseconds } = found;
    const ifChangedAt = { seconds, nanoseconds };
    try {
      const change = await server.asCallerOnly(request, async (options) =>
        found.type === fileType.regular
          ? (await nfs.commit(handle, 0, 0, options)).change
          : await nfs.setattr(handle, { mode }, { ...options, ifChangedAt }),
      );
      return change?.after;
    } catch (cause) {
      // The creator is permitted to do this; a refusal means it is not ours.
      if (cause instanceof NfsError) return undefined;
      throw cause;
    }
  }

  async function hasTarget(target: Buffer, handle: FileHandle, request: Request): Promise<boolean> {
    const found = await server.asCallerOnly(request, (options) => nfs.readlink(handle, options));
    return target.equals(Buffer.from(found as string));
  }

  async function make(what: NewObject, request: Request): Promise<ResolvedName> {
    const { parent } = what;
    const before = proofs.find(request.place);
    // Check before creating an object that the kernel could not be told of.
    if (before === undefined && !nodes.hasRoom()) throw new Errno('ENOMEM');
    const { seconds, nanoseconds } = before?.kind === 'made' ? before : marks.next();
    const mark = marks.at({ seconds, nanoseconds });
    if (before?.kind === 'made') {
      const made = await findMadeByPredecessor(what, before, request);
      if (made !== undefined) return made;
    } else proofs.write(request.place, { kind: 'made', seconds, nanoseconds });
    const since = attributes.now();
    const isSure = before === undefined && marks.areKept === true;
    const call = isSure ? what.make : (what.exclusively ?? what.make);
    const send = () => server.on(request, parent, (directory, options) => call(directory, mark, options));
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

  async function made(what: NewObject, request: Request): Promise<Entry> {
    const there = await make(what, request);
    remember(what.parent, what.name, there);
    return await entries.entry(what.parent, keyOf(what.name), there, request);
  }

  /**
   * Another client created it between the kernel's lookup and ours. On ESTALE the kernel looks it up again, checks
   * permissions and truncates it if asked to.
   */
  function staleName(parent: number, name: Buffer, cause: unknown): Errno {
    names.drop(parent, keyOf(name));
    return new Errno('ESTALE', cause);
  }

  function regular(parent: number, name: Buffer, bits: number, isExclusive: boolean): NewObject {
    const mode = bits & 0o7777;
    const make: Make = (directory, { set }, options) =>
      nfs.create(directory, name, { mode: 'guarded', set: { ...set, mode } }, options);
    /** With EXCLUSIVE, the server recognizes a repeated call until the file's times are set. */
    const exclusively: Make = async (directory, mark, options) => {
      if (!hasExclusive) return await make(directory, mark, options);
      try {
        const made = await nfs.create(directory, name, { mode: 'exclusive', verifier: verifierOf(mark.time) }, options);
        const { after } = await nfs.setattr(made.handle, { atime: 'now', mtime: 'now', ...mark.set, mode }, options);
        return { ...made, attributes: after };
      } catch (cause) {
        if (!isNfsError(cause, 'NOTSUPP')) throw cause;
        hasExclusive = false;
        return await make(directory, mark, options);
      }
    };
    return { parent, name, type: fileType.regular, make, exclusively: isExclusive ? exclusively : undefined };
  }

  return {
    create: async (parent, name, { flags, mode }, request) => {
      const isExclusive = (flags & constants.O_EXCL) !== 0;
      try {
        const there = await make(regular(parent, name, mode, isExclusive), request);
        remember(parent, name, there);
        return there;
      } catch (cause) {
        throw isNfsError(cause, 'EXIST') && !isExclusive ? staleName(parent, name, cause) : cause;
      }
    },
    mkdir: async (parent, name, mode, request) => {
      const make: Make = (directory, { set }, options) => nfs.mkdir(directory, name, { ...set, mode }, options);
      const entry = await made({ parent, name, type: fileType.directory, make }, request);
      // A new directory is empty.
      names.complete(entry.node, names.changes(entry.node));
      return entry;
    },
    mknod: (parent, name, { mode, rdev }, request) => {
      const type = typeByBits(mode);
      if (type === fileType.regular) return made(regular(parent, name, mode, true), request);
      const special = { name, type, major: majorOf(rdev), minor: minorOf(rdev) };
      const make: Make = (directory, { set }, options) =>
        nfs.mknod({ directory, ...special, set: { ...set, mode: mode & 0o7777 } }, options);
      return made({ parent, name, type, make }, request);
    },
    symlink: (parent, name, target, request) =>
      made(
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
      const before = proofs.find(request.place);
      if (before?.kind === 'moved') {
        const there = await entries.find(parent, name, request);
        if (there !== undefined && isSame(there.handle, before.handle))
          return await entries.entry(parent, keyOf(name), there, request);
      } else proofs.write(request.place, { kind: 'moved', handle });
      const since = attributes.now();
      const send = () =>
        server.onTwo(request, id, parent, (file, directory, options) => nfs.link(file, { directory, name }, options));
      const onFile = () =>
        recordChange(attributes, id, send, ({ attributes: after }) => ({ before: undefined, after }));
      const linked = await recordChange(attributes, parent, onFile, ({ change }) => change);
      const there = { handle: server.node(id).handle, attributes: linked.attributes, since };
      remember(parent, name, there);
      return await entries.entry(parent, keyOf(name), there, request);
    },
  };
}
