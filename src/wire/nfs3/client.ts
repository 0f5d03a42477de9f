import type { Clock } from '#base/clock.ts';
import type { CallOptions, RpcClient } from '../rpc/client.ts';
import type { RpcError } from '../rpc/errors.ts';
import type { Procedure } from '../rpc/procedure.ts';
import type { Text } from '../xdr/writer.ts';
import { isAsSet, isCreated, isMarked, isSameText } from './attribute-matching.ts';
import { checkName } from './names.ts';
import * as procedures from './procedures.ts';
import { createCalling, type Mutation } from './retrying-calls.ts';
import { isNfsError } from './status.ts';
import {
  type Attributes,
  type FileHandle,
  fileType,
  maxTransfer,
  type Place,
  type SetAttributes,
  type Time,
  type Wcc,
} from './structures.ts';

type Result<P> = P extends Procedure<never, infer R> ? R : never;

/** What was made. Always with its handle: where a server leaves it out, it is looked up. */
export interface New {
  readonly handle: FileHandle;
  readonly attributes: Attributes | undefined;
  /** Of the directory, where the server told. */
  readonly change?: Wcc | undefined;
}

/** For REMOVE, RMDIR and RENAME. */
export interface Meaning {
  /**
   * The file that the caller means by the name. If the connection is lost and the server cannot recognise the resent call, the client looks
   * the name up: if it leads to another file or to none, the call was done. If the client does not know whether the server restarted, it
   * resends the call only while the name leads to this file. 'anything': nobody else uses the name. Left out: the outcome stays unknown.
   */
  readonly meant?: FileHandle | 'anything' | undefined;
}

/** Nothing is known of what a call changed. */
const unknownChange: Wcc = { before: undefined, after: undefined };

/**
 * NFS version 3 over one RPC client. Every call takes its signal and its deadline. A call that was resent because the connection
 * broke is answered as if it had been sent once. One that may not be resent (`RpcError.decide`) is decided by asking the
 * server what has become of it, if there is time for that before its deadline: docs/designs/nfs-resends.md.
 */
export interface NfsClient {
  null(options?: CallOptions): Promise<void>;
  getattr(handle: FileHandle, options?: CallOptions): Promise<Attributes>;
  setattr(
    handle: FileHandle,
    set: SetAttributes,
    options?: CallOptions & { readonly ifChangedAt?: Time },
  ): Promise<Wcc>;
  lookup(directory: FileHandle, name: Text, options?: CallOptions): Promise<procedures.Found>;
  access(handle: FileHandle, mask: number, options?: CallOptions): Promise<number>;
  readlink(handle: FileHandle, options?: CallOptions): Promise<Text>;
  read(
    handle: FileHandle,
    offset: number,
    into: Buffer | procedures.LateBuffer,
    options?: CallOptions,
  ): Promise<procedures.ReadResult>;
  write(
    handle: FileHandle,
    offset: number,
    data: Uint8Array,
    stable: number,
    options?: CallOptions,
  ): Promise<procedures.WriteResult>;
  create(directory: FileHandle, name: Text, how: procedures.CreateArgs['how'], options?: CallOptions): Promise<New>;
  mkdir(directory: FileHandle, name: Text, set: SetAttributes, options?: CallOptions): Promise<New>;
  symlink(directory: FileHandle, name: Text, target: Text, set: SetAttributes, options?: CallOptions): Promise<New>;
  mknod(args: procedures.MknodArgs, options?: CallOptions): Promise<New>;
  remove(directory: FileHandle, name: Text, options?: CallOptions & Meaning): Promise<Wcc>;
  rmdir(directory: FileHandle, name: Text, options?: CallOptions & Meaning): Promise<Wcc>;
  rename(from: Place, to: Place, options?: CallOptions & Meaning): Promise<procedures.Renamed>;
  link(handle: FileHandle, to: Place, options?: CallOptions): Promise<procedures.Linked>;
  readdir(args: procedures.ReaddirArgs, options?: CallOptions): Promise<Result<typeof procedures.readdir>>;
  readdirplus(args: procedures.ReaddirArgs, options?: CallOptions): Promise<Result<typeof procedures.readdirplus>>;
  fsstat(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.fsstat>>;
  fsinfo(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.fsinfo>>;
  pathconf(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.pathconf>>;
  commit(handle: FileHandle, offset: number, count: number, options?: CallOptions): Promise<procedures.Committed>;
}

export function createNfsClient(rpc: Pick<RpcClient, 'call'>, clock: Clock): NfsClient {
  const { call, mutate } = createCalling(rpc, clock);

  const find = (place: Place, options: CallOptions | undefined): Promise<procedures.Found> =>
    named(place, () => call(procedures.lookup, place, options));

  /** Makes something, or finds what the first of two identical calls made. `isOurs`: what is there can be that. */
  function make<A extends Place>(
    procedure: Procedure<A, procedures.Made>,
    args: A,
    isOurs: (attributes: Attributes, handle: FileHandle) => boolean | Promise<boolean>,
    options: CallOptions | undefined,
  ): Promise<New> {
    const existing = async (cause: unknown): Promise<New> => {
      if (!isNfsError(cause, 'EXIST') || !cause.resent) throw cause;
      const { handle, attributes } = await find(args, options).catch(goneMeans(cause));
      const about = attributes ?? (await call(procedures.getattr, handle, options).catch(goneMeans(cause)));
      if (!(await Promise.resolve(isOurs(about, handle)).catch(goneMeans(cause)))) throw cause;
      return { handle, attributes: about };
    };
    return named(args, () =>
      mutate({ procedure, args, options }, existing).then((made) => (hasHandle(made) ? made : find(args, options))),
    );
  }

  const readlink = async (handle: FileHandle, options: CallOptions | undefined): Promise<Text> => {
    const { target } = await call(procedures.readlink, handle, options);
    return target.bytes ?? target.text;
  };

  /** Undefined: the name means nothing. */
  const whatIs = (place: Place, options: CallOptions): Promise<FileHandle | undefined> =>
    find(place, options).then(
      ({ handle }) => handle,
      (cause: unknown) => {
        if (!isNfsError(cause, 'NOENT')) throw cause;
        return undefined;
      },
    );

  /** Whether a name still means what the call was about. Throws what was unknown if nobody said what that is. */
  async function isStill(
    place: Place,
    meant: Meaning['meant'],
    options: CallOptions,
    unknown: RpcError,
  ): Promise<boolean> {
    const handle = await whatIs(place, options);
    if (handle === undefined) return false;
    if (meant === undefined) throw unknown;
    return meant === 'anything' || isSameHandle(handle, meant) || (await isSameFile(handle, meant, options));
  }

  /** Adds the question that is asked before the call is resent to a server that may have restarted. */
  function taking(place: Place, options: (CallOptions & Meaning) | undefined): CallOptions {
    const meant = options?.meant;
    if (meant === 'anything') return options ?? {};
    const isUndone: CallOptions['isNotExecuted'] = async (on) => {
      if (meant === undefined) return undefined;
      const how = { signal: options?.signal, credential: options?.credential, ...on };
      const handle = await whatIs(place, how);
      return handle !== undefined && (isSameHandle(handle, meant) || (await isSameFile(handle, meant, how)));
    };
    return { ...options, isNotExecuted: isUndone };
  }

  /** Servers may have given it another handle since. */
  async function isSameFile(found: FileHandle, meant: FileHandle, options: CallOptions): Promise<boolean> {
    const before = await call(procedures.getattr, meant, options).catch((cause: unknown) => {
      if (!isNfsError(cause, 'STALE', 'BADHANDLE')) throw cause;
      return undefined;
    });
    if (before === undefined) return false;
    const now = await call(procedures.getattr, found, options);
    return before.fileId === now.fileId && before.fsid === now.fsid;
  }

  /** Success if the name is gone and it may have been our own first call that removed it. */
  const take = (
    procedure: Procedure<Place, Wcc>,
    args: Place,
    options: (CallOptions & Meaning) | undefined,
  ): Promise<Wcc> => {
    const isDone: Mutation<Place, Wcc>['isDone'] = async (inTime, unknown) =>
      (await isStill(args, options?.meant, inTime, unknown)) ? undefined : unknownChange;
    return named(args, () =>
      mutate({ procedure, args, options: taking(args, options), isDone }, (cause) => {
        if (!isNfsError(cause, 'NOENT') || !cause.resent) throw cause;
        return unknownChange;
      }),
    );
  };

  return {
    null: (options) => call(procedures.nullCall, undefined, options),
    getattr: (handle, options) => call(procedures.getattr, handle, options),
    setattr: async (handle, set, options) => {
      try {
        const args = { handle, set, ifChangedAt: options?.ifChangedAt };
        return await mutate({ procedure: procedures.setattr, args, options });
      } catch (cause) {
        // The change since then may be the one that the first of the two made.
        if (!isNfsError(cause, 'NOT_SYNC') || !cause.resent) throw cause;
        const after = await call(procedures.getattr, handle, options);
        if (!isAsSet(after, set)) throw cause;
        return { before: undefined, after };
      }
    },
    lookup: (directory, name, options) => find({ directory, name }, options),
    access: async (handle, mask, options) => (await call(procedures.access, { handle, mask }, options)).granted,
    readlink,
    read: (handle, offset, into, options) =>
      // More would be a reply longer than is taken.
      call(procedures.read, { handle, offset, into: into.length > maxTransfer ? shorter(into) : into }, options),
    write: (handle, offset, data, stable, options) =>
      mutate({ procedure: procedures.write, args: { handle, offset, data, stable }, options }),
    create: (directory, name, how, options) =>
      // Of an exclusive one the server knows by its verifier whether it is ours: then it is told as made, not as there.
      make(
        procedures.create,
        { directory, name, how },
        (found) => how.mode !== 'exclusive' && isCreated(found, how.set),
        options,
      ),
    mkdir: (directory, name, set, options) =>
      make(
        procedures.mkdir,
        { directory, name, set },
        (found) => found.type === fileType.directory && isMarked(found, set),
        options,
      ),
    symlink: (directory, name, target, set, options) =>
      make(
        procedures.symlink,
        { directory, name, set, target },
        async ({ type }, handle) => type === fileType.link && isSameText(await readlink(handle, options), target),
        options,
      ),
    mknod: (args, options) =>
      make(procedures.mknod, args, (found) => found.type === args.type && isMarked(found, args.set), options),
    remove: (directory, name, options) => take(procedures.remove, { directory, name }, options),
    rmdir: (directory, name, options) => take(procedures.rmdir, { directory, name }, options),
    rename: async (from, to, options) => {
      checkName(from.name);
      checkName(to.name);
      try {
        return await mutate({
          procedure: procedures.rename,
          args: { from, to },
          options: taking(from, options),
          isDone: async (inTime, unknown) => {
            if (await isStill(from, options?.meant, inTime, unknown)) return undefined;
            // Moved on by somebody else since, or never moved: without knowing what it was, the target decides.
            if (options?.meant === undefined && (await whatIs(to, inTime)) === undefined) throw unknown;
            return { from: unknownChange, to: unknownChange };
          },
        });
      } catch (cause) {
        // The first of the two may have moved it.
        if (!isNfsError(cause, 'NOENT') || !cause.resent) throw cause;
        await find(to, options).catch(goneMeans(cause));
        return { from: unknownChange, to: unknownChange };
      }
    },
    link: async (handle, to, options) => {
      checkName(to.name);
      try {
        return await mutate({
          procedure: procedures.link,
          args: { handle, to },
          options,
          isDone: async (inTime) => {
            const there = await whatIs(to, inTime);
            if (there === undefined || !isSameHandle(there, handle)) return undefined;
            return { attributes: undefined, change: unknownChange };
          },
        });
      } catch (cause) {
        if (!isNfsError(cause, 'EXIST') || !cause.resent) throw cause;
        const [one, other] = await Promise.all([
          call(procedures.getattr, handle, options),
          find(to, options).then((found) => call(procedures.getattr, found.handle, options)),
        ]).catch(goneMeans(cause));
        if (one.fileId !== other.fileId || one.fsid !== other.fsid) throw cause;
        return { attributes: other, change: unknownChange };
      }
    },
    readdir: (args, options) => call(procedures.readdir, args, options),
    readdirplus: (args, options) => call(procedures.readdirplus, args, options),
    fsstat: (handle, options) => call(procedures.fsstat, handle, options),
    fsinfo: (handle, options) => call(procedures.fsinfo, handle, options),
    pathconf: (handle, options) => call(procedures.pathconf, handle, options),
    commit: (handle, offset, count, options) => call(procedures.commit, { handle, offset, count }, options),
  };
}

/** Another node removed it after the server had answered: then that answer holds. */
const goneMeans =
  (cause: unknown) =>
  (missing: unknown): never => {
    throw isNfsError(missing, 'NOENT', 'STALE') ? cause : missing;
  };

const isSameHandle = (a: FileHandle, b: FileHandle): boolean => Buffer.compare(a, b) === 0;

const shorter = (into: Buffer | procedures.LateBuffer): Buffer | procedures.LateBuffer =>
  into instanceof Uint8Array
    ? into.subarray(0, maxTransfer)
    : { length: maxTransfer, take: (length) => into.take(length) };

const hasHandle = (made: procedures.Made): made is New => made.handle !== undefined;

/** A name that cannot be one is told as every other failure is. */
function named<R>({ name }: Place, work: () => Promise<R>): Promise<R> {
  try {
    checkName(name);
  } catch (cause) {
    return Promise.reject(cause);
  }
  return work();
}
