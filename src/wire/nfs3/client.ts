import type { Clock } from '#base/clock.ts';
import type { CallOptions, RpcClient } from '../rpc/client.ts';
import type { Procedure } from '../rpc/procedure.ts';
import type { Text } from '../xdr/writer.ts';
import { hasTimesOf, isSameText, matchesCreate, matchesSetattr } from './attribute-matching.ts';
import { createNameChanges, type NameChanges, rethrowIfGone } from './name-changes.ts';
import { withValidName } from './names.ts';
import * as procedures from './procedures.ts';
import { createRetryingCalls } from './retrying-calls.ts';
import { isNfsError } from './status.ts';
import {
  type Attributes,
  type DirOpArgs,
  type FileHandle,
  fileType,
  maxTransferBytes,
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

/**
 * NFS version 3 over one RPC client. Every call takes a signal and a deadline. A call that was resent after a lost connection
 * returns the result as if it had been sent once. If a call may not be resent (`RpcError.outcomeCheck`), the client asks the
 * server whether it was executed, if the deadline allows: docs/designs/nfs-resends.md.
 */
export interface NfsClient extends NameChanges {
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
  readdir(args: procedures.ReaddirArgs, options?: CallOptions): Promise<Result<typeof procedures.readdir>>;
  readdirplus(args: procedures.ReaddirArgs, options?: CallOptions): Promise<Result<typeof procedures.readdirplus>>;
  fsstat(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.fsstat>>;
  fsinfo(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.fsinfo>>;
  pathconf(handle: FileHandle, options?: CallOptions): Promise<Result<typeof procedures.pathconf>>;
  commit(handle: FileHandle, offset: number, count: number, options?: CallOptions): Promise<procedures.CommitResult>;
}

export function createNfsClient(rpc: Pick<RpcClient, 'call'>, clock: Clock): NfsClient {
  const calls = createRetryingCalls(rpc, clock);
  const { call, mutate } = calls;

  const lookup = (args: DirOpArgs, options: CallOptions | undefined): Promise<procedures.LookupResult> =>
    withValidName(args, () => call(procedures.lookup, args, options));

  /**
   * Creates an object. If the call was sent twice, finds the object that the first copy created. `isOurs`: whether the existing
   * object may be that object.
   */
  function createObject<A extends DirOpArgs>(
    procedure: Procedure<A, procedures.CreateResult>,
    args: A,
    isOurs: (attributes: Attributes, handle: FileHandle) => boolean | Promise<boolean>,
    options: CallOptions | undefined,
  ): Promise<Created> {
    const findCreatedObject = async (cause: unknown): Promise<Created> => {
      if (!isNfsError(cause, 'EXIST') || !cause.resent) throw cause;
      const { handle, attributes } = await lookup(args, options).catch(rethrowIfGone(cause));
      const existingAttributes =
        attributes ?? (await call(procedures.getattr, handle, options).catch(rethrowIfGone(cause)));
      if (!(await Promise.resolve(isOurs(existingAttributes, handle)).catch(rethrowIfGone(cause)))) throw cause;
      return { handle, attributes: existingAttributes };
    };
    return withValidName(args, () =>
      mutate({ procedure, args, options }, findCreatedObject).then((made) =>
        hasHandle(made) ? made : lookup(args, options),
      ),
    );
  }

  const readlink = async (handle: FileHandle, options: CallOptions | undefined): Promise<Text> => {
    const { target } = await call(procedures.readlink, handle, options);
    return target.bytes ?? target.text;
  };

  return {
    null: (options) => call(procedures.nullCall, undefined, options),
    getattr: (handle, options) => call(procedures.getattr, handle, options),
    setattr: async (handle, set, options) => {
      try {
        const args = { handle, set, ifChangedAt: options?.ifChangedAt };
        return await mutate({ procedure: procedures.setattr, args, options });
      } catch (cause) {
        // The first copy of the call may have made the change that fails the guard of the second.
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
      // A reply with more data would exceed the limit on records.
      call(
        procedures.read,
        { handle, offset, into: into.length > maxTransferBytes ? limitToMaxTransfer(into) : into },
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
    ...createNameChanges(calls, lookup),
    readdir: (args, options) => call(procedures.readdir, args, options),
    readdirplus: (args, options) => call(procedures.readdirplus, args, options),
    fsstat: (handle, options) => call(procedures.fsstat, handle, options),
    fsinfo: (handle, options) => call(procedures.fsinfo, handle, options),
    pathconf: (handle, options) => call(procedures.pathconf, handle, options),
    commit: (handle, offset, count, options) => call(procedures.commit, { handle, offset, count }, options),
  };
}

const limitToMaxTransfer = (into: Buffer | procedures.DeferredBuffer): Buffer | procedures.DeferredBuffer =>
  into instanceof Uint8Array
    ? into.subarray(0, maxTransferBytes)
    : { length: maxTransferBytes, take: (length) => into.take(length) };

const hasHandle = (result: procedures.CreateResult): result is Created => result.handle !== undefined;
