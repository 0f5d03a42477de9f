import type { Clock } from '#base/clock.ts';
import type { CallOptions, RpcClient } from '../rpc/client.ts';
import { RpcError } from '../rpc/errors.ts';
import type { Procedure } from '../rpc/procedure.ts';
import type { Text } from '../xdr/writer.ts';
import { checkName } from './names.ts';
import * as procedures from './procedures.ts';
import { isNfsError, NfsError, nfsStatus } from './status.ts';
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

/** Nothing is known of what a call changed. */
const unknownChange: Wcc = { before: undefined, after: undefined };

/**
 * NFS version 3 over one RPC client. Every call takes its signal and its deadline. A call that was sent twice because the
 * connection broke in between is answered as if it had been sent once, as far as that can be told.
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
  remove(directory: FileHandle, name: Text, options?: CallOptions): Promise<Wcc>;
  rmdir(directory: FileHandle, name: Text, options?: CallOptions): Promise<Wcc>;
  rename(from: Place, to: Place, options?: CallOptions): Promise<procedures.Renamed>;
  link(handle: FileHandle, to: Place, options?: CallOptions): Promise<procedures.Linked>;
  readdir(args: procedures.ReaddirArgs, options?: CallOptions): Promise<Result<typeof procedures.readdir>>;
  readdirplus(args: procedures.ReaddirArgs, options?: CallOptions): Promise<Result<typeof procedures.readdirplus>>;
  fsstat(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.fsstat>>;
  fsinfo(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.fsinfo>>;
  pathconf(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.pathconf>>;
  commit(handle: FileHandle, offset: number, count: number, options?: CallOptions): Promise<procedures.Committed>;
}

/** A server that says "later" (a tape, a quota being counted) is asked again for as long as the deadline allows. */
const jukeboxMs = [100, 200, 400, 800, 1600, 3200, 5000] as const;

export function createNfsClient(rpc: Pick<RpcClient, 'call'>, clock: Clock): NfsClient {
  const never = new AbortController().signal;

  async function later<A, R>(
    procedure: Procedure<A, R>,
    args: A,
    options: CallOptions | undefined,
    { since, refusal }: { readonly since: number; readonly refusal: NfsError },
  ): Promise<R> {
    const { signal = never, deadlineMs } = options ?? {};
    for (const pause of jukeboxMs) {
      const left = deadlineMs && deadlineMs - pause - (clock.elapsed() - since);
      if (left !== undefined && left <= 0) break;
      await clock.sleep(pause, signal);
      try {
        return await rpc.call(procedure, args, { ...options, deadlineMs: left });
      } catch (cause) {
        if (isNfsError(cause, 'JUKEBOX')) continue;
        // Sent twice before the server said "later" is sent twice.
        throw refusal.resent && cause instanceof NfsError ? new NfsError(cause.procedure, cause.status, true) : cause;
      }
    }
    throw refusal;
  }

  /** Without `await` or `catch` on the way: a call costs a few microseconds, and each promise is a part of that. */
  const call = <A, R>(
    procedure: Procedure<A, R>,
    args: A,
    options: CallOptions | undefined,
    recover: (cause: unknown) => R | Promise<R> = thrown,
  ): Promise<R> =>
    rpc.call(procedure, args, options, (cause, since) => {
      if (isNfsError(cause, 'JUKEBOX'))
        return later(procedure, args, options, { since, refusal: cause }).catch(recover);
      // A server without the procedure at all means the same as one that says it does not support it.
      if (cause instanceof RpcError && cause.failure === 'no-procedure')
        throw new NfsError(procedure.name, nfsStatus.NOTSUPP, false);
      return recover(cause);
    });

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
      const found = await find(args, options);
      const attributes = found.attributes ?? (await call(procedures.getattr, found.handle, options));
      if (!(await isOurs(attributes, found.handle))) throw cause;
      return { handle: found.handle, attributes };
    };
    return named(args, () =>
      call(procedure, args, options, existing).then((made) => (hasHandle(made) ? made : find(args, options))),
    );
  }

  const readlink = async (handle: FileHandle, options: CallOptions | undefined): Promise<Text> => {
    const { target } = await call(procedures.readlink, handle, options);
    return target.bytes ?? target.text;
  };

  /** Gone is gone, when it may have been our own first call that did it. */
  const take = (procedure: Procedure<Place, Wcc>, place: Place, options: CallOptions | undefined): Promise<Wcc> =>
    named(place, () =>
      call(procedure, place, options, (cause) => {
        if (!isNfsError(cause, 'NOENT') || !cause.resent) throw cause;
        return unknownChange;
      }),
    );

  return {
    null: (options) => call(procedures.nullCall, undefined, options),
    getattr: (handle, options) => call(procedures.getattr, handle, options),
    setattr: async (handle, set, options) => {
      try {
        return await call(procedures.setattr, { handle, set, ifChangedAt: options?.ifChangedAt }, options);
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
    write: (handle, offset, data, stable, options) => call(procedures.write, { handle, offset, data, stable }, options),
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
        async ({ type }, handle) => type === fileType.link && isSame(await readlink(handle, options), target),
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
        return await call(procedures.rename, { from, to }, options);
      } catch (cause) {
        // The first of the two may have moved it.
        if (!isNfsError(cause, 'NOENT') || !cause.resent) throw cause;
        await find(to, options).catch((missing: unknown) => {
          throw isNfsError(missing, 'NOENT') ? cause : missing;
        });
        return { from: unknownChange, to: unknownChange };
      }
    },
    link: async (handle, to, options) => {
      checkName(to.name);
      try {
        return await call(procedures.link, { handle, to }, options);
      } catch (cause) {
        if (!isNfsError(cause, 'EXIST') || !cause.resent) throw cause;
        const [one, other] = await Promise.all([
          call(procedures.getattr, handle, options),
          find(to, options).then((found) => call(procedures.getattr, found.handle, options)),
        ]);
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

function thrown(cause: unknown): never {
  throw cause;
}

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

const isSame = (a: Text, b: Text): boolean => Buffer.from(a as string).equals(Buffer.from(b as string));

/** Whether a file is as a SETATTR would leave it. A time set to the server's clock tells nothing. */
function isAsSet(is: Attributes, { mode, uid, gid, size, atime, mtime }: SetAttributes): boolean {
  const known = [
    [mode, is.mode],
    [uid, is.uid],
    [gid, is.gid],
    [size, is.size],
    ...sameTime(atime, is.atime, is.atimeNs),
    ...sameTime(mtime, is.mtime, is.mtimeNs),
  ].filter(([wanted]) => wanted !== undefined);
  return known.length > 0 && known.every(([wanted, found]) => wanted === found);
}

const sameTime = (time: SetAttributes['atime'], seconds: number, nanoseconds: number) =>
  time === undefined || time === 'now'
    ? []
    : [
        [time.seconds, seconds],
        [time.nanoseconds, nanoseconds],
      ];

const isCreated = (found: Attributes, set: SetAttributes): boolean =>
  found.type === fileType.regular && found.size === (set.size ?? 0) && isMarked(found, set);

/** What was made with a time of its own can be told from what somebody else made meanwhile. */
function isMarked({ mtime, mtimeNs }: Attributes, set: SetAttributes): boolean {
  if (set.mtime === undefined || set.mtime === 'now') return true;
  return mtime === set.mtime.seconds && mtimeNs === set.mtime.nanoseconds;
}
