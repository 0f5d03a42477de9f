import type { Clock } from '#base/clock.ts';
import type { CallOptions, RpcClient } from '../rpc/client.ts';
import type { RpcError } from '../rpc/errors.ts';
import type { Procedure } from '../rpc/procedure.ts';
import type { Text } from '../xdr/writer.ts';
import { hasTimesOf, isSameText, matchesCreate, matchesSetattr } from './attribute-matching.ts';
import { checkName } from './names.ts';
import * as procedures from './procedures.ts';
import { createRetryingCalls, type Mutation } from './retrying-calls.ts';
import { isNfsError } from './status.ts';
import {
  type Attributes,
  type DirOpArgs,
  type FileHandle,
  fileType,
  maxTransfer,
  type SetAttributes,
  type Time,
  type Wcc,
} from './structures.ts';

type Result<P> = P extends Procedure<never, infer R> ? R : never;

/** A created object. The handle is always present: if the server leaves it out, the client looks it up. */
export interface Created {
  readonly handle: FileHandle;
  readonly attributes: Attributes | undefined;
  /** How the directory changed, if the server reported it. */
  readonly change?: Wcc | undefined;
}

/** For REMOVE, RMDIR and RENAME. */
export interface ExpectedFile {
  /**
   * The file that the caller expects under the name. If the connection is lost and the server cannot recognise the resent call,
   * the client looks the name up: if it refers to another file or to none, the call was executed. If the client does not know
   * whether the server restarted, it resends the call only while the name refers to this file. 'anything': no other client uses
   * the name. Left out: the outcome stays unknown.
   */
  readonly expected?: FileHandle | 'anything' | undefined;
}

/** Reported if the client does not know what a call changed. */
const unknownChange: Wcc = { before: undefined, after: undefined };

/**
 * NFS version 3 over one RPC client. Every call takes a signal and a deadline. A call that was resent after a lost connection
 * returns the result as if it had been sent once. If a call may not be resent (`RpcError.outcomeCheck`), the client asks the
 * server whether it was executed, if the deadline allows: docs/designs/nfs-resends.md.
 */
export interface NfsClient {
  null(options?: CallOptions): Promise<void>;
  getattr(handle: FileHandle, options?: CallOptions): Promise<Attributes>;
  setattr(
    handle: FileHandle,
    set: SetAttributes,
    options?: CallOptions & { readonly ifChangedAt?: Time },
  ): Promise<Wcc>;
  lookup(directory: FileHandle, name: Text, options?: CallOptions): Promise<procedures.LookupResult>;
  access(handle: FileHandle, mask: number, options?: CallOptions): Promise<number>;
  readlink(handle: FileHandle, options?: CallOptions): Promise<Text>;
  read(
    handle: FileHandle,
    offset: number,
    into: Buffer | procedures.DeferredBuffer,
    options?: CallOptions,
  ): Promise<procedures.ReadResult>;
  write(
    handle: FileHandle,
    offset: number,
    data: Uint8Array,
    stable: number,
    options?: CallOptions,
  ): Promise<procedures.WriteResult>;
  create(directory: FileHandle, name: Text, how: procedures.CreateArgs['how'], options?: CallOptions): Promise<Created>;
  mkdir(directory: FileHandle, name: Text, set: SetAttributes, options?: CallOptions): Promise<Created>;
  symlink(directory: FileHandle, name: Text, target: Text, set: SetAttributes, options?: CallOptions): Promise<Created>;
  mknod(args: procedures.MknodArgs, options?: CallOptions): Promise<Created>;
  remove(directory: FileHandle, name: Text, options?: CallOptions & ExpectedFile): Promise<Wcc>;
  rmdir(directory: FileHandle, name: Text, options?: CallOptions & ExpectedFile): Promise<Wcc>;
  rename(from: DirOpArgs, to: DirOpArgs, options?: CallOptions & ExpectedFile): Promise<procedures.RenameResult>;
  link(handle: FileHandle, to: DirOpArgs, options?: CallOptions): Promise<procedures.LinkResult>;
  readdir(args: procedures.ReaddirArgs, options?: CallOptions): Promise<Result<typeof procedures.readdir>>;
  readdirplus(args: procedures.ReaddirArgs, options?: CallOptions): Promise<Result<typeof procedures.readdirplus>>;
  fsstat(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.fsstat>>;
  fsinfo(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.fsinfo>>;
  pathconf(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.pathconf>>;
  commit(handle: FileHandle, offset: number, count: number, options?: CallOptions): Promise<procedures.CommitResult>;
}

export function createNfsClient(rpc: Pick<RpcClient, 'call'>, clock: Clock): NfsClient {
  const { call, mutate } = createRetryingCalls(rpc, clock);

  const lookup = (place: DirOpArgs, options: CallOptions | undefined): Promise<procedures.LookupResult> =>
    withValidName(place, () => call(procedures.lookup, place, options));

  /**
   * Creates an object, or finds the one that the first of two identical calls created. `isOurs`: whether the existing object can
   * be that one.
   */
  function createObject<A extends DirOpArgs>(
    procedure: Procedure<A, procedures.CreateResult>,
    args: A,
    isOurs: (attributes: Attributes, handle: FileHandle) => boolean | Promise<boolean>,
    options: CallOptions | undefined,
  ): Promise<Created> {
    const existing = async (cause: unknown): Promise<Created> => {
      if (!isNfsError(cause, 'EXIST') || !cause.resent) throw cause;
      const { handle, attributes } = await lookup(args, options).catch(rethrowIfGone(cause));
      const about = attributes ?? (await call(procedures.getattr, handle, options).catch(rethrowIfGone(cause)));
      if (!(await Promise.resolve(isOurs(about, handle)).catch(rethrowIfGone(cause)))) throw cause;
      return { handle, attributes: about };
    };
    return withValidName(args, () =>
      mutate({ procedure, args, options }, existing).then((made) => (hasHandle(made) ? made : lookup(args, options))),
    );
  }

  const readlink = async (handle: FileHandle, options: CallOptions | undefined): Promise<Text> => {
    const { target } = await call(procedures.readlink, handle, options);
    return target.bytes ?? target.text;
  };

  /** Undefined: the name does not exist. */
  const lookupHandle = (place: DirOpArgs, options: CallOptions): Promise<FileHandle | undefined> =>
    lookup(place, options).then(
      ({ handle }) => handle,
      (cause: unknown) => {
        if (!isNfsError(cause, 'NOENT')) throw cause;
        return undefined;
      },
    );

  /** Whether a name still refers to the expected file. Throws `unknown` if the caller did not say which file it expects. */
  async function stillNames(
    place: DirOpArgs,
    expected: ExpectedFile['expected'],
    options: CallOptions,
    unknown: RpcError,
  ): Promise<boolean> {
    const handle = await lookupHandle(place, options);
    if (handle === undefined) return false;
    if (expected === undefined) throw unknown;
    return expected === 'anything' || isSameHandle(handle, expected) || (await isSameFile(handle, expected, options));
  }

  /** Adds the check that runs before the call is resent to a server that may have restarted. */
  function withExpectedCheck(place: DirOpArgs, options: (CallOptions & ExpectedFile) | undefined): CallOptions {
    const expected = options?.expected;
    if (expected === 'anything') return options ?? {};
    const isNotExecuted: CallOptions['isNotExecuted'] = async (on) => {
      if (expected === undefined) return undefined;
      const how = { signal: options?.signal, credential: options?.credential, ...on };
      const handle = await lookupHandle(place, how);
      return handle !== undefined && (isSameHandle(handle, expected) || (await isSameFile(handle, expected, how)));
    };
    return { ...options, isNotExecuted };
  }

  /** Compares file ids, since the server may have issued another handle for the same file. */
  async function isSameFile(found: FileHandle, expected: FileHandle, options: CallOptions): Promise<boolean> {
    const before = await call(procedures.getattr, expected, options).catch((cause: unknown) => {
      if (!isNfsError(cause, 'STALE', 'BADHANDLE')) throw cause;
      return undefined;
    });
    if (before === undefined) return false;
    const now = await call(procedures.getattr, found, options);
    return before.fileId === now.fileId && before.fsid === now.fsid;
  }

  /** Succeeds if the name is gone and our own first call may have removed it. */
  const removeName = (
    procedure: Procedure<DirOpArgs, Wcc>,
    args: DirOpArgs,
    options: (CallOptions & ExpectedFile) | undefined,
  ): Promise<Wcc> => {
    const findOutcome: Mutation<DirOpArgs, Wcc>['findOutcome'] = async (inTime, unknown) =>
      (await stillNames(args, options?.expected, inTime, unknown)) ? undefined : unknownChange;
    return withValidName(args, () =>
      mutate({ procedure, args, options: withExpectedCheck(args, options), findOutcome }, (cause) => {
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
        // The first of the two calls may have made the change that fails the guard.
        if (!isNfsError(cause, 'NOT_SYNC') || !cause.resent) throw cause;
        const after = await call(procedures.getattr, handle, options);
        if (!matchesSetattr(after, set)) throw cause;
        return { before: undefined, after };
      }
    },
    lookup: (directory, name, options) => lookup({ directory, name }, options),
    access: async (handle, mask, options) => (await call(procedures.access, { handle, mask }, options)).granted,
    readlink,
    read: (handle, offset, into, options) =>
      // A longer reply would exceed the limit on records.
      call(
        procedures.read,
        { handle, offset, into: into.length > maxTransfer ? limitToMaxTransfer(into) : into },
        options,
      ),
    write: (handle, offset, data, stable, options) =>
      mutate({ procedure: procedures.write, args: { handle, offset, data, stable }, options }),
    create: (directory, name, how, options) =>
      // For an exclusive CREATE, the server compares the verifier and returns success, not EXIST.
      createObject(
        procedures.create,
        { directory, name, how },
        (found) => how.mode !== 'exclusive' && matchesCreate(found, how.set),
        options,
      ),
    mkdir: (directory, name, set, options) =>
      createObject(
        procedures.mkdir,
        { directory, name, set },
        (found) => found.type === fileType.directory && hasTimesOf(found, set),
        options,
      ),
    symlink: (directory, name, target, set, options) =>
      createObject(
        procedures.symlink,
        { directory, name, set, target },
        async ({ type }, handle) => type === fileType.link && isSameText(await readlink(handle, options), target),
        options,
      ),
    mknod: (args, options) =>
      createObject(procedures.mknod, args, (found) => found.type === args.type && hasTimesOf(found, args.set), options),
    remove: (directory, name, options) => removeName(procedures.remove, { directory, name }, options),
    rmdir: (directory, name, options) => removeName(procedures.rmdir, { directory, name }, options),
    rename: async (from, to, options) => {
      checkName(from.name);
      checkName(to.name);
      try {
        return await mutate({
          procedure: procedures.rename,
          args: { from, to },
          options: withExpectedCheck(from, options),
          findOutcome: async (inTime, unknown) => {
            if (await stillNames(from, options?.expected, inTime, unknown)) return undefined;
            // Either another client renamed it since, or it was never renamed. Without the expected handle, the existence of the
            // target decides.
            if (options?.expected === undefined && (await lookupHandle(to, inTime)) === undefined) throw unknown;
            return { from: unknownChange, to: unknownChange };
          },
        });
      } catch (cause) {
        // The first of the two calls may have renamed it.
        if (!isNfsError(cause, 'NOENT') || !cause.resent) throw cause;
        await lookup(to, options).catch(rethrowIfGone(cause));
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
          findOutcome: async (inTime) => {
            const there = await lookupHandle(to, inTime);
            if (there === undefined || !isSameHandle(there, handle)) return undefined;
            return { attributes: undefined, change: unknownChange };
          },
        });
      } catch (cause) {
        if (!isNfsError(cause, 'EXIST') || !cause.resent) throw cause;
        const [one, other] = await Promise.all([
          call(procedures.getattr, handle, options),
          lookup(to, options).then((found) => call(procedures.getattr, found.handle, options)),
        ]).catch(rethrowIfGone(cause));
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

/** If another client removed the object after the server's answer, that answer holds. */
const rethrowIfGone =
  (cause: unknown) =>
  (missing: unknown): never => {
    throw isNfsError(missing, 'NOENT', 'STALE') ? cause : missing;
  };

const isSameHandle = (a: FileHandle, b: FileHandle): boolean => Buffer.compare(a, b) === 0;

const limitToMaxTransfer = (into: Buffer | procedures.DeferredBuffer): Buffer | procedures.DeferredBuffer =>
  into instanceof Uint8Array
    ? into.subarray(0, maxTransfer)
    : { length: maxTransfer, take: (length) => into.take(length) };

const hasHandle = (made: procedures.CreateResult): made is Created => made.handle !== undefined;

/** Rejects with the NameError instead of throwing it, like every other failure. */
function withValidName<R>({ name }: DirOpArgs, work: () => Promise<R>): Promise<R> {
  try {
    checkName(name);
  } catch (cause) {
    return Promise.reject(cause);
  }
  return work();
}
