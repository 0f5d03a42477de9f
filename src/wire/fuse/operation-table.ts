import { getattrFlag, type OpName, opcode, outHeaderSize, releaseFlag } from './abi.ts';
import { readFsync, readLock, readSetattr, readTwoNames } from './arguments.ts';
import {
  createDirentWriter,
  createReplyBuffer,
  putAttrReply,
  putBytes,
  putEntry,
  putLock,
  putOpened,
  putStatfs,
  putU32,
  putU64,
  type ReplyBuffer,
} from './encode.ts';
import { Errno } from './errno.ts';
import { bigU64, fileOffset, header, type Message, readBytes, readName, requireBytes, u32, u64 } from './message.ts';
import type { Operations, ReadReply, Request } from './operations.ts';

type MaybePromise<T> = T | Promise<T>;

/** How to execute an operation and how to encode its result. */
export interface Operation {
  readonly name: OpName;
  /** Undefined: the file system method not implement it. */
  run(fileSystem: Partial<Operations>, message: Message, request: Request): MaybePromise<unknown> | undefined;
  /** Writes the result at `at`; returns the offset after it. */
  put(out: ReplyBuffer, at: number, result: never): number;
}

const putNothing = (_out: ReplyBuffer, at: number): number => at;

/** `size`: the size of the fixed arguments. A shorter request is answered with EPROTO. */
function define<K extends keyof Operations, R>(
  name: OpName & K,
  size: number,
  run: (method: Operations[K], message: Message, request: Request) => MaybePromise<R>,
  put: (out: ReplyBuffer, at: number, result: R) => number,
): Operation {
  return {
    name,
    run: (system, message, request) => {
      const method = system[name] as Operations[K] | undefined;
      if (method === undefined) return undefined;
      requireBytes(message, size);
      return run(method, message, request);
    },
    put,
  };
}

const node = header.node;

const rename = (name: 'rename' | 'rename2', size: number): Operation => ({
  name,
  run: (system, message, request) => {
    if (system.rename === undefined) return undefined;
    requireBytes(message, size);
    const [from, to] = readTwoNames(message, size);
    const flags = name === 'rename' ? 0 : u32(message, 8);
    return system.rename({ parent: node(message), name: from }, { parent: u64(message, 0), name: to }, flags, request);
  },
  put: putNothing,
});

/** A directory listing and the offset of its end. */
interface DirectoryReply {
  readonly out: ReplyBuffer;
  readonly end: number;
}

/** The limit on one listing; the kernel never requests as much. */
const maxListingBytes = 1024 * 1024;

const readdir = (name: 'readdir' | 'readdirplus'): Operation => ({
  name,
  run: (system, message, request) => {
    if (system.readdir === undefined) return undefined;
    requireBytes(message, 24);
    const plus = name === 'readdirplus';
    const size = Math.min(u32(message, 16), maxListingBytes);
    const out = createReplyBuffer(16 + size);
    const listing = createDirentWriter(out, size, plus);
    const directoryReply = (): DirectoryReply => ({ out, end: listing.end });
    const reading = system.readdir(
      node(message),
      { fh: u64(message, 0), offset: bigU64(message, 8), plus },
      listing,
      request,
    );
    return reading instanceof Promise ? reading.then(directoryReply) : directoryReply();
  },
  put: putDirectoryReply,
});

function putDirectoryReply(out: ReplyBuffer, at: number, { out: from, end }: DirectoryReply): number {
  return putBytes(out, at, from.buffer.subarray(16, end));
}

/** The value of an extended attribute or the list of names; its size alone if the caller asks for that. */
const putSized = (out: ReplyBuffer, at: number, value: Uint8Array | number): number =>
  typeof value === 'number' ? putU32(out, at, value) : putBytes(out, at, value);

function checkSize(value: Uint8Array | number, size: number): Uint8Array | number {
  if (typeof value === 'number') return value;
  if (size === 0) return value.length;
  if (value.length > size) throw new Errno('ERANGE');
  return value;
}

const checkXattrSize = async (value: MaybePromise<Uint8Array | number>, size: number): Promise<Uint8Array | number> =>
  checkSize(await value, size);

/** A READ beyond 2^53 is beyond the end of any file. */
const emptyRead = (): ReadReply => ({ buffer: Buffer.alloc(outHeaderSize), length: 0 });

const operations: readonly Operation[] = [
  define('lookup', 0, (method, m, q) => method(node(m), readName(m, 0), q), putEntry),
  define(
    'getattr',
    16,
    (method, m, q) => method(node(m), (u32(m, 0) & getattrFlag.fh) === 0 ? undefined : u64(m, 8), q),
    putAttrReply,
  ),
  define('setattr', 88, (method, m, q) => method(node(m), readSetattr(m), q), putAttrReply),
  define('readlink', 0, (method, m, q) => method(node(m), q), putBytes),
  define(
    'symlink',
    0,
    (method, m, q) => {
      const [name, target] = readTwoNames(m, 0);
      return method(node(m), name, target, q);
    },
    putEntry,
  ),
  define(
    'mknod',
    16,
    (method, m, q) => method(node(m), readName(m, 16), { mode: u32(m, 0), rdev: u32(m, 4) }, q),
    putEntry,
  ),
  define('mkdir', 8, (method, m, q) => method(node(m), readName(m, 8), u32(m, 0) & 0o7777, q), putEntry),
  define('unlink', 0, (method, m, q) => method(node(m), readName(m, 0), q), putNothing),
  define('rmdir', 0, (method, m, q) => method(node(m), readName(m, 0), q), putNothing),
  rename('rename', 8),
  rename('rename2', 16),
  define('link', 8, (method, m, q) => method(u64(m, 0), node(m), readName(m, 8), q), putEntry),
  define('open', 8, (method, m, q) => method(node(m), u32(m, 0), q), putOpened),
  define(
    'create',
    16,
    (method, m, q) => method(node(m), readName(m, 16), { flags: u32(m, 0), mode: u32(m, 4) }, q),
    (out, at, { entry, opened }) => putOpened(out, putEntry(out, at, entry), opened),
  ),
  define(
    'read',
    40,
    (method, m, q) =>
      u64(m, 8) > Number.MAX_SAFE_INTEGER
        ? emptyRead()
        : method(node(m), { fh: u64(m, 0), offset: u64(m, 8), size: u32(m, 16) }, q),
    // The session sends the reply from the buffer of the data: see session.ts.
    (_out, at) => at,
  ),
  define(
    'write',
    40,
    (method, m, q) =>
      method(
        node(m),
        { fh: u64(m, 0), offset: fileOffset(m, 8, u32(m, 16)), flags: u32(m, 20), openFlags: u32(m, 32) },
        readBytes(m, 40, u32(m, 16)),
        q,
      ),
    putU32,
  ),
  define('flush', 24, (method, m, q) => method(node(m), u64(m, 0), q), putNothing),
  define(
    'release',
    24,
    (method, m, q) =>
      method(
        node(m),
        { fh: u64(m, 0), unlock: (u32(m, 12) & releaseFlag.flockUnlock) === 0 ? undefined : bigU64(m, 16) },
        q,
      ),
    putNothing,
  ),
  define('fsync', 16, (method, m, q) => method(node(m), readFsync(m), q), putNothing),
  define('opendir', 8, (method, m, q) => method(node(m), u32(m, 0), q), putOpened),
  readdir('readdir'),
  readdir('readdirplus'),
  define('releasedir', 24, (method, m, q) => method(node(m), u64(m, 0), q), putNothing),
  define('fsyncdir', 16, (method, m, q) => method(node(m), readFsync(m), q), putNothing),
  define('statfs', 0, (method, m, q) => method(node(m), q), putStatfs),
  define('access', 8, (method, m, q) => method(node(m), u32(m, 0), q), putNothing),
  define(
    'getxattr',
    8,
    (method, m, q) => checkXattrSize(method(node(m), readName(m, 8), u32(m, 0), q), u32(m, 0)),
    putSized,
  ),
  define(
    'setxattr',
    8,
    (method, m, q) => {
      const name = readName(m, 8);
      return method(node(m), name, { value: readBytes(m, 8 + name.length + 1, u32(m, 0)), flags: u32(m, 4) }, q);
    },
    putNothing,
  ),
  define('listxattr', 8, (method, m, q) => checkXattrSize(method(node(m), u32(m, 0), q), u32(m, 0)), putSized),
  define('removexattr', 0, (method, m, q) => method(node(m), readName(m, 0), q), putNothing),
  define('getlk', 48, (method, m, q) => method(node(m), readLock(m), q), putLock),
  define('setlk', 48, (method, m, q) => method(node(m), readLock(m), q), putNothing),
  define('setlkw', 48, (method, m, q) => method(node(m), readLock(m), q), putNothing),
  define(
    'fallocate',
    32,
    (method, m, q) =>
      method(node(m), { fh: u64(m, 0), offset: fileOffset(m, 8, u64(m, 16)), length: u64(m, 16), mode: u32(m, 24) }, q),
    putNothing,
  ),
  define(
    'lseek',
    24,
    // lseek(2): beyond the end there are neither data nor holes.
    (method, m, q) => method(node(m), { fh: u64(m, 0), offset: fileOffset(m, 8, 0, 'ENXIO'), whence: u32(m, 16) }, q),
    putU64,
  ),
  define(
    'copyFileRange',
    56,
    (method, m, q) =>
      method(
        { node: node(m), fh: u64(m, 0), offset: fileOffset(m, 8, 0, 'EOVERFLOW') },
        { node: u64(m, 16), fh: u64(m, 24), offset: fileOffset(m, 32) },
        u64(m, 40),
        q,
      ),
    putU32,
  ),
];

/** The operations of file systems by opcode. */
export const operationTable: readonly (Operation | undefined)[] = operations.reduce<(Operation | undefined)[]>(
  (table, operation) => {
    table[opcode[operation.name]] = operation;
    return table;
  },
  [],
);
