import type { Procedure, ServerVerifier } from '../rpc/procedure.ts';
import { XdrError, type XdrReader } from '../xdr/reader.ts';
import type { Text, XdrWriter } from '../xdr/writer.ts';
import { readDirectoryPage, readDirectoryPagePlus } from './entries.ts';
import { NfsError } from './status.ts';
import {
  type Attributes,
  type DirOpArgs,
  type FileHandle,
  maxPathBytes,
  nfsProgram,
  nfsVersion,
  readAttributes,
  readHandle,
  readPostAttributes,
  readPostHandle,
  readWcc,
  type SetAttributes,
  stability,
  type Time,
  type Wcc,
  writeDirOpArgs,
  writeSetAttributes,
} from './structures.ts';

/** The procedures of NFS version 3 (RFC 1813, section 3.3) for a client: one entry each. */
function procedure<A, R>(
  number: number,
  name: string,
  encode: (writer: XdrWriter, args: A) => void,
  decodeResult: (reader: XdrReader, args: A) => R,
  {
    dataOf,
    mutates,
    serverVerifier: incarnation,
  }: {
    /** The bytes to send after the arguments without a copy. */
    readonly dataOf?: (args: A) => Uint8Array;
    readonly mutates?: (args: A) => boolean;
    readonly serverVerifier?: ServerVerifier;
  } = {},
): Procedure<A, R> {
  return {
    program: nfsProgram,
    version: nfsVersion,
    number,
    name,
    mutates,
    serverVerifier: incarnation,
    encode: (writer, args) => {
      encode(writer, args);
      return dataOf?.(args);
    },
    decode: (reader, args, resent) => {
      const status = reader.u32();
      if (status !== 0) throw new NfsError(name, status, resent);
      return decodeResult(reader, args);
    },
  };
}

const alwaysMutates = (): boolean => true;

/**
 * The write verifier. The query for it is a WRITE of zero bytes, which changes nothing: RFC 1813, section 3.3.7. A COMMIT would
 * wait for the disk, and could receive a write error that the application's own COMMIT has to receive.
 */
const writeVerifier: ServerVerifier = {
  verifierOf: (result) => (result as { readonly verifier: bigint }).verifier,
  queryTarget: (args) => (args as { readonly handle: FileHandle }).handle,
  query: (witness) => ({ procedure: verifierQuery as Procedure<unknown, unknown>, args: { handle: witness } }),
};

const writeHandle = (writer: XdrWriter, handle: FileHandle): void => {
  writer.opaque(handle);
};

export const nullCall: Procedure<undefined, undefined> = {
  program: nfsProgram,
  version: nfsVersion,
  number: 0,
  name: 'NULL',
  encode: () => undefined,
  decode: () => undefined,
};

export const getattr = procedure(1, 'GETATTR', writeHandle, readAttributes);

export const setattr = procedure(
  2,
  'SETATTR',
  (
    writer,
    args: { readonly handle: FileHandle; readonly set: SetAttributes; readonly ifChangedAt?: Time | undefined },
  ) => {
    writer.opaque(args.handle);
    writeSetAttributes(writer, args.set);
    writer.bool(args.ifChangedAt !== undefined);
    if (args.ifChangedAt !== undefined) writer.u32(args.ifChangedAt.seconds).u32(args.ifChangedAt.nanoseconds);
  },
  readWcc,
  // With a guard, a late copy of the call fails.
  { mutates: ({ ifChangedAt }) => ifChangedAt === undefined },
);

export interface LookupResult {
  readonly handle: FileHandle;
  readonly attributes: Attributes | undefined;
  /** The attributes of the directory. */
  readonly directory?: Attributes | undefined;
}

export const lookup = procedure(
  3,
  'LOOKUP',
  writeDirOpArgs,
  (reader): LookupResult => ({
    handle: readHandle(reader),
    attributes: readPostAttributes(reader),
    directory: readPostAttributes(reader),
  }),
);

export const accessRight = { read: 1, lookup: 2, modify: 4, extend: 8, delete: 16, execute: 32 } as const;

export const access = procedure(
  4,
  'ACCESS',
  (writer, { handle, mask }: { readonly handle: FileHandle; readonly mask: number }) => {
    writer.opaque(handle).u32(mask);
  },
  (reader) => ({ attributes: readPostAttributes(reader), granted: reader.u32() }),
);

export const readlink = procedure(5, 'READLINK', writeHandle, (reader) => ({
  attributes: readPostAttributes(reader),
  target: reader.name(maxPathBytes),
}));

/**
 * A buffer that is chosen when the data arrive. Of many READs in flight, few receive data at the same time. So a caller can reuse
 * the same memory for the next READ while it is in the processor's cache, which halves the cost of a large READ.
 */
export interface DeferredBuffer {
  /** The number of bytes to request. */
  readonly length: number;
  /** Returns a buffer of this length for the data. */
  take(length: number): Buffer;
}

export interface ReadArgs {
  readonly handle: FileHandle;
  readonly offset: number;
  /** The destination of the data; its length is the number of bytes to request. */
  readonly into: Buffer | DeferredBuffer;
}

export interface ReadResult {
  readonly count: number;
  readonly isEnd: boolean;
  readonly attributes: Attributes | undefined;
  /** The part of `into` that was filled. */
  readonly data: Buffer;
}

function readResultHead(reader: XdrReader, { into }: ReadArgs): ReadResult {
  const attributes = readPostAttributes(reader);
  const count = reader.u32();
  const isEnd = reader.bool();
  const length = reader.u32();
  if (count > into.length || length !== count) throw new XdrError(`READ of ${into.length} bytes gave ${length}`);
  return { count, isEnd, attributes, data: into instanceof Uint8Array ? into.subarray(0, count) : into.take(count) };
}

export const read: Procedure<ReadArgs, ReadResult> = {
  ...procedure(
    6,
    'READ',
    (writer, { handle, offset, into }: ReadArgs) => {
      writer.opaque(handle).size(offset).u32(into.length);
    },
    (reader, args) => {
      const result = readResultHead(reader, args);
      const from = reader.skipBytes(result.count);
      reader.buffer.copy(result.data, 0, from, from + result.count);
      return result;
    },
  ),
  decodeHead: (reader, args) => {
    if (reader.u32() !== 0) return undefined;
    const result = readResultHead(reader, args);
    return { target: result.data, result };
  },
};

export interface WriteArgs {
  readonly handle: FileHandle;
  readonly offset: number;
  readonly data: Uint8Array;
  readonly stable: number;
}

export interface WriteResult {
  readonly count: number;
  readonly committed: number;
  /** If it differs from the previous one, the server restarted, and may have lost uncommitted data. */
  readonly verifier: bigint;
  readonly change?: Wcc;
}

export const write = procedure(
  7,
  'WRITE',
  (writer, { handle, offset, data, stable }: WriteArgs) => {
    writer.opaque(handle).size(offset).u32(data.length).u32(stable).u32(data.length);
  },
  (reader, { data }): WriteResult => {
    const change = readWcc(reader);
    const count = reader.u32();
    if (count > data.length) throw new XdrError(`WRITE of ${data.length} bytes wrote ${count}`);
    return { change, count, committed: reader.u32(), verifier: reader.u64() };
  },
  { dataOf: ({ data }) => data, mutates: alwaysMutates, serverVerifier: writeVerifier },
);

/** The query for the write verifier. It has no `mutates`, since it can be repeated at any time. */
const verifierQuery = procedure(
  7,
  'WRITE',
  (writer, { handle }: { readonly handle: FileHandle }) => {
    writeHandle(writer, handle);
    writer.u64(0n).u32(0).u32(stability.unstable).u32(0);
  },
  (reader) => {
    readWcc(reader);
    // Ignore the count: nfs-ganesha does not set it.
    reader.u32();
    reader.u32();
    return { verifier: reader.u64() };
  },
  { serverVerifier: writeVerifier },
);

export interface CreateResult {
  /** Undefined: the server left it out, and the client looks it up. */
  readonly handle: FileHandle | undefined;
  readonly attributes: Attributes | undefined;
  /** How the directory changed. */
  readonly change?: Wcc | undefined;
}

const readCreateResult = (reader: XdrReader): CreateResult => ({
  handle: readPostHandle(reader),
  attributes: readPostAttributes(reader),
  change: readWcc(reader),
});

export interface CreateArgs extends DirOpArgs {
  /** Exclusive: a second call with the same verifier finds the file that the first created. */
  readonly how:
    | { readonly mode: 'unchecked' | 'guarded'; readonly set: SetAttributes }
    | { readonly mode: 'exclusive'; readonly verifier: bigint };
}

export const create = procedure(
  8,
  'CREATE',
  (writer, args: CreateArgs) => {
    writeDirOpArgs(writer, args);
    if (args.how.mode === 'exclusive') writer.u32(2).u64(args.how.verifier);
    else {
      writer.u32(args.how.mode === 'guarded' ? 1 : 0);
      writeSetAttributes(writer, args.how.set);
    }
  },
  readCreateResult,
  // Exclusive CREATE, too: a late copy would recreate a file that another client has removed since.
  { mutates: alwaysMutates },
);

export const mkdir = procedure(
  9,
  'MKDIR',
  (writer, args: DirOpArgs & { readonly set: SetAttributes }) => {
    writeDirOpArgs(writer, args);
    writeSetAttributes(writer, args.set);
  },
  readCreateResult,
  { mutates: alwaysMutates },
);

export const symlink = procedure(
  10,
  'SYMLINK',
  (writer, args: DirOpArgs & { readonly set: SetAttributes; readonly target: Text }) => {
    writeDirOpArgs(writer, args);
    writeSetAttributes(writer, args.set);
    writer.string(args.target);
  },
  readCreateResult,
  { mutates: alwaysMutates },
);

export interface MknodArgs extends DirOpArgs {
  /** One of `fileType`, except regular, directory and link. */
  readonly type: number;
  readonly set: SetAttributes;
  readonly major?: number;
  readonly minor?: number;
}

export const mknod = procedure(
  11,
  'MKNOD',
  (writer, args: MknodArgs) => {
    writeDirOpArgs(writer, args);
    writer.u32(args.type);
    writeSetAttributes(writer, args.set);
    if (args.type === 3 || args.type === 4) writer.u32(args.major ?? 0).u32(args.minor ?? 0);
  },
  readCreateResult,
  { mutates: alwaysMutates },
);

export const remove = procedure(12, 'REMOVE', writeDirOpArgs, readWcc, { mutates: alwaysMutates });
export const rmdir = procedure(13, 'RMDIR', writeDirOpArgs, readWcc, { mutates: alwaysMutates });

/** How a RENAME changed its two directories. */
export interface RenameResult {
  readonly from: Wcc;
  readonly to: Wcc;
}

export const rename = procedure(
  14,
  'RENAME',
  (writer, { from, to }: { readonly from: DirOpArgs; readonly to: DirOpArgs }) => {
    writeDirOpArgs(writer, from);
    writeDirOpArgs(writer, to);
  },
  (reader): RenameResult => ({ from: readWcc(reader), to: readWcc(reader) }),
  { mutates: alwaysMutates },
);

export interface LinkResult {
  readonly attributes: Attributes | undefined;
  /** How the directory changed. */
  readonly change: Wcc;
}

export const link = procedure(
  15,
  'LINK',
  (writer, { handle, to }: { readonly handle: FileHandle; readonly to: DirOpArgs }) => {
    writer.opaque(handle);
    writeDirOpArgs(writer, to);
  },
  (reader): LinkResult => ({ attributes: readPostAttributes(reader), change: readWcc(reader) }),
  { mutates: alwaysMutates },
);

export interface ReaddirArgs {
  readonly directory: FileHandle;
  readonly cookie: bigint;
  readonly verifier: bigint;
  readonly bytes: number;
}

export const readdir = procedure(
  16,
  'READDIR',
  (writer, { directory, cookie, verifier, bytes }: ReaddirArgs) => {
    writer.opaque(directory).u64(cookie).u64(verifier).u32(bytes);
  },
  readDirectoryPage,
);

export const readdirplus = procedure(
  17,
  'READDIRPLUS',
  (writer, { directory, cookie, verifier, bytes }: ReaddirArgs) => {
    // dircount: names take little space compared with attributes and handles.
    writer
      .opaque(directory)
      .u64(cookie)
      .u64(verifier)
      .u32(Math.max(4096, bytes >> 2))
      .u32(bytes);
  },
  readDirectoryPagePlus,
);

export const fsstat = procedure(18, 'FSSTAT', writeHandle, (reader) => ({
  attributes: readPostAttributes(reader),
  totalBytes: reader.u64(),
  freeBytes: reader.u64(),
  availableBytes: reader.u64(),
  totalFiles: reader.u64(),
  freeFiles: reader.u64(),
  availableFiles: reader.u64(),
  unchangedSeconds: reader.u32(),
}));

export const fsinfo = procedure(19, 'FSINFO', writeHandle, (reader) => ({
  attributes: readPostAttributes(reader),
  maxRead: reader.u32(),
  preferredRead: reader.u32(),
  readMultiple: reader.u32(),
  maxWrite: reader.u32(),
  preferredWrite: reader.u32(),
  writeMultiple: reader.u32(),
  preferredReaddir: reader.u32(),
  maxFileSize: reader.u64(),
  timeStepSeconds: reader.u32(),
  timeStepNanoseconds: reader.u32(),
  properties: reader.u32(),
}));

export const pathconf = procedure(20, 'PATHCONF', writeHandle, (reader) => ({
  attributes: readPostAttributes(reader),
  maxLinks: reader.u32(),
  maxName: reader.u32(),
  refusesLongNames: reader.bool(),
  chownRestricted: reader.bool(),
  ignoresCase: reader.bool(),
  preservesCase: reader.bool(),
}));

export interface CommitResult {
  readonly verifier: bigint;
  readonly change?: Wcc;
}

export const commit = procedure(
  21,
  'COMMIT',
  (writer, args: { readonly handle: FileHandle; readonly offset?: number; readonly count?: number }) => {
    writer
      .opaque(args.handle)
      .size(args.offset ?? 0)
      .u32(args.count ?? 0);
  },
  (reader): CommitResult => ({ change: readWcc(reader), verifier: reader.u64() }),
  { serverVerifier: writeVerifier },
);
