import type { CallOptions } from '../rpc/client.ts';
import type { RpcError } from '../rpc/errors.ts';
import type { Procedure } from '../rpc/procedure.ts';
import type { Text } from '../xdr/writer.ts';
import { checkName, withValidName } from './names.ts';
import * as procedures from './procedures.ts';
import type { Mutation, RetryingCalls } from './retrying-calls.ts';
import { isNfsError } from './status.ts';
import type { DirOpArgs, FileHandle, Wcc } from './structures.ts';

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

/** The calls that remove, change or add a name. After a lost connection, a lookup of the name shows whether the server executed them. */
export interface NameChanges {
  remove(directory: FileHandle, name: Text, options?: CallOptions & ExpectedFile): Promise<Wcc>;
  rmdir(directory: FileHandle, name: Text, options?: CallOptions & ExpectedFile): Promise<Wcc>;
  rename(from: DirOpArgs, to: DirOpArgs, options?: CallOptions & ExpectedFile): Promise<procedures.RenameResult>;
  link(handle: FileHandle, to: DirOpArgs, options?: CallOptions): Promise<procedures.LinkResult>;
}

type Lookup = (args: DirOpArgs, options: CallOptions | undefined) => Promise<procedures.LookupResult>;

/** Reported if the client does not know what a call changed. */
const unknownChange: Wcc = { before: undefined, after: undefined };

interface NameChecks {
  /** Undefined: the name does not exist. */
  lookupHandle(place: DirOpArgs, options: CallOptions): Promise<FileHandle | undefined>;
  /** Whether a name still refers to the expected file. Throws `unknown` if the caller did not say which file it expects. */
  stillRefersTo(
    place: DirOpArgs,
    expected: ExpectedFile['expected'],
    options: CallOptions,
    unknown: RpcError,
  ): Promise<boolean>;
  /** Adds the check that runs before the call is resent to a server that may have restarted. */
  withExpectedCheck(place: DirOpArgs, options: (CallOptions & ExpectedFile) | undefined): CallOptions;
}

function createNameChecks(call: RetryingCalls['call'], lookup: Lookup): NameChecks {
  const lookupHandle = (place: DirOpArgs, options: CallOptions): Promise<FileHandle | undefined> =>
    lookup(place, options).then(
      ({ handle }) => handle,
      (cause: unknown) => {
        if (!isNfsError(cause, 'NOENT')) throw cause;
        return undefined;
      },
    );

  async function stillRefersTo(
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

  function withExpectedCheck(place: DirOpArgs, options: (CallOptions & ExpectedFile) | undefined): CallOptions {
    const expected = options?.expected;
    if (expected === 'anything') return options ?? {};
    const isNotExecuted: CallOptions['isNotExecuted'] = async (on) => {
      if (expected === undefined) return undefined;
      const callOptions = { signal: options?.signal, credential: options?.credential, ...on };
      const handle = await lookupHandle(place, callOptions);
      return (
        handle !== undefined && (isSameHandle(handle, expected) || (await isSameFile(handle, expected, callOptions)))
      );
    };
    return { ...options, isNotExecuted };
  }

  /** Compares file ids, since the server may have issued another handle for the same file. */
  async function isSameFile(found: FileHandle, expected: FileHandle, options: CallOptions): Promise<boolean> {
    const expectedAttributes = await call(procedures.getattr, expected, options).catch((cause: unknown) => {
      if (!isNfsError(cause, 'STALE', 'BADHANDLE')) throw cause;
      return undefined;
    });
    if (expectedAttributes === undefined) return false;
    const foundAttributes = await call(procedures.getattr, found, options);
    return expectedAttributes.fileId === foundAttributes.fileId && expectedAttributes.fsid === foundAttributes.fsid;
  }

  return { lookupHandle, stillRefersTo: stillRefersTo, withExpectedCheck };
}

export function createNameChanges({ call, mutate }: RetryingCalls, lookup: Lookup): NameChanges {
  const { lookupHandle, stillRefersTo: stillNames, withExpectedCheck } = createNameChecks(call, lookup);

  /** Succeeds if the name does not exist and the first copy of the call may have removed it. */
  const removeName = (
    procedure: Procedure<DirOpArgs, Wcc>,
    args: DirOpArgs,
    options: (CallOptions & ExpectedFile) | undefined,
  ): Promise<Wcc> => {
    const findOutcome: Mutation<DirOpArgs, Wcc>['findOutcome'] = async (callOptions, unknown) =>
      (await stillNames(args, options?.expected, callOptions, unknown)) ? undefined : unknownChange;
    return withValidName(args, () =>
      mutate({ procedure, args, options: withExpectedCheck(args, options), findOutcome }, (cause) => {
        if (!isNfsError(cause, 'NOENT') || !cause.resent) throw cause;
        return unknownChange;
      }),
    );
  };

  return {
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
            // Without the expected handle, the existence of the target shows whether the server executed the RENAME: the source
            // may be missing because another client renamed it.
            if (options?.expected === undefined && (await lookupHandle(to, inTime)) === undefined) throw unknown;
            return { from: unknownChange, to: unknownChange };
          },
        });
      } catch (cause) {
        // The first copy of the call may have renamed it.
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
            const linkedHandle = await lookupHandle(to, inTime);
            if (linkedHandle === undefined || !isSameHandle(linkedHandle, handle)) return undefined;
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
  };
}

/** If another client removed the object after the server's error reply, rethrows that error. */
export const rethrowIfGone =
  (cause: unknown) =>
  (later: unknown): never => {
    throw isNfsError(later, 'NOENT', 'STALE') ? cause : later;
  };

const isSameHandle = (a: FileHandle, b: FileHandle): boolean => Buffer.compare(a, b) === 0;
