import { getattrFlag, type OpName, opcode, outHeaderSize, releaseFlag } from './abi.ts';
import { lock, set, sync, twoNames } from './arguments.ts';
import {
  createListing,
  createOutput,
  type Output,
  putAttrReply,
  putBytes,
  putEntry,
  putLock,
  putOpened,
  putStatfs,
  putU32,
  putU64,
} from './encode.ts';
import { Errno } from './errno.ts';
import { big, bytes, header, type Message, needs, number, offset, text, u32 } from './message.ts';
import type { Operations, ReadReply, Request } from './operations.ts';

type Answer<T> = T | Promise<T>;

/** What one operation does with a request, and how its result becomes an answer. */
export interface Operation {
  readonly name: OpName;
  /** Undefined: the file system does not have it. */
  run(system: Partial<Operations>, message: Message, request: Request): Answer<unknown> | undefined;
  /** Writes the result from `at` on; gives where it ends. */
  put(out: Output, at: number, result: never): number;
}

const nothing = (_out: Output, at: number): number => at;

/** `size`: of the fixed part of the arguments; a request without it is answered with EPROTO before anything is done. */
function define<K extends keyof Operations, R>(
  name: OpName & K,
  size: number,
  run: (does: Operations[K], message: Message, request: Request) => Answer<R>,
  put: (out: Output, at: number, result: R) => number,
): Operation {
  return {
    name,
    run: (system, message, request) => {
      const does = system[name] as Operations[K] | undefined;
      if (does === undefined) return undefined;
      needs(message, size);
      return run(does, message, request);
    },
    put,
  };
}

const node = header.node;

const rename = (name: 'rename' | 'rename2', size: number): Operation => ({
  name,
  run: (system, message, request) => {
    if (system.rename === undefined) return undefined;
    needs(message, size);
    const [from, to] = twoNames(message, size);
    const flags = name === 'rename' ? 0 : u32(message, 8);
    return system.rename(
      { parent: node(message), name: from },
      { parent: number(message, 0), name: to },
      flags,
      request,
    );
  },
  put: nothing,
});

/** A list that was read, and what to write of it. */
interface Listed {
  readonly out: Output;
  readonly end: number;
}

/** More than the kernel ever asks for at once. */
const longestListing = 1024 * 1024;

const readdir = (name: 'readdir' | 'readdirplus'): Operation => ({
  name,
  run: (system, message, request) => {
    if (system.readdir === undefined) return undefined;
    needs(message, 24);
    const plus = name === 'readdirplus';
    const size = Math.min(u32(message, 16), longestListing);
    const out = createOutput(16 + size);
    const listing = createListing(out, size, plus);
    const done = (): Listed => ({ out, end: listing.end });
    const reading = system.readdir(
      node(message),
      { fh: number(message, 0), offset: big(message, 8), plus },
      listing,
      request,
    );
    return reading instanceof Promise ? reading.then(done) : done();
  },
  put: putListed,
});

function putListed(out: Output, at: number, { out: from, end }: Listed): number {
  return putBytes(out, at, from.buffer.subarray(16, end));
}

/** The size of an extended attribute or of their list, or the thing itself where there is room for it. */
const putSized = (out: Output, at: number, found: Uint8Array | number): number =>
  typeof found === 'number' ? putU32(out, at, found) : putBytes(out, at, found);

function sized(found: Uint8Array | number, size: number): Uint8Array | number {
  if (typeof found === 'number') return found;
  if (size === 0) return found.length;
  if (found.length > size) throw new Errno('ERANGE');
  return found;
}

const xattrList = async (found: Answer<Uint8Array | number>, size: number): Promise<Uint8Array | number> =>
  sized(await found, size);

/** As at the end of the file, which is before. */
const nothingRead = (): ReadReply => ({ buffer: Buffer.alloc(outHeaderSize), length: 0 });

const operations: readonly Operation[] = [
  define('lookup', 0, (does, m, q) => does(node(m), text(m, 0), q), putEntry),
  define(
    'getattr',
    16,
    (does, m, q) => does(node(m), (u32(m, 0) & getattrFlag.fh) === 0 ? undefined : number(m, 8), q),
    putAttrReply,
  ),
  define('setattr', 88, (does, m, q) => does(node(m), set(m), q), putAttrReply),
  define('readlink', 0, (does, m, q) => does(node(m), q), putBytes),
  define(
    'symlink',
    0,
    (does, m, q) => {
      const [name, target] = twoNames(m, 0);
      return does(node(m), name, target, q);
    },
    putEntry,
  ),
  define('mknod', 16, (does, m, q) => does(node(m), text(m, 16), { mode: u32(m, 0), rdev: u32(m, 4) }, q), putEntry),
  define('mkdir', 8, (does, m, q) => does(node(m), text(m, 8), u32(m, 0) & 0o7777, q), putEntry),
  define('unlink', 0, (does, m, q) => does(node(m), text(m, 0), q), nothing),
  define('rmdir', 0, (does, m, q) => does(node(m), text(m, 0), q), nothing),
  rename('rename', 8),
  rename('rename2', 16),
  define('link', 8, (does, m, q) => does(number(m, 0), node(m), text(m, 8), q), putEntry),
  define('open', 8, (does, m, q) => does(node(m), u32(m, 0), q), putOpened),
  define(
    'create',
    16,
    (does, m, q) => does(node(m), text(m, 16), { flags: u32(m, 0), mode: u32(m, 4) }, q),
    (out, at, { entry, opened }) => putOpened(out, putEntry(out, at, entry), opened),
  ),
  define(
    'read',
    40,
    (does, m, q) =>
      number(m, 8) > Number.MAX_SAFE_INTEGER
        ? nothingRead()
        : does(node(m), { fh: number(m, 0), offset: number(m, 8), size: u32(m, 16) }, q),
    // Answered from where the data lie: see session.ts.
    (_out, at) => at,
  ),
  define(
    'write',
    40,
    (does, m, q) =>
      does(
        node(m),
        { fh: number(m, 0), offset: offset(m, 8, u32(m, 16)), flags: u32(m, 20), openFlags: u32(m, 32) },
        bytes(m, 40, u32(m, 16)),
        q,
      ),
    putU32,
  ),
  define('flush', 24, (does, m, q) => does(node(m), number(m, 0), q), nothing),
  define(
    'release',
    24,
    (does, m, q) =>
      does(
        node(m),
        { fh: number(m, 0), unlock: (u32(m, 12) & releaseFlag.flockUnlock) === 0 ? undefined : big(m, 16) },
        q,
      ),
    nothing,
  ),
  define('fsync', 16, (does, m, q) => does(node(m), sync(m), q), nothing),
  define('opendir', 8, (does, m, q) => does(node(m), u32(m, 0), q), putOpened),
  readdir('readdir'),
  readdir('readdirplus'),
  define('releasedir', 24, (does, m, q) => does(node(m), number(m, 0), q), nothing),
  define('fsyncdir', 16, (does, m, q) => does(node(m), sync(m), q), nothing),
  define('statfs', 0, (does, m, q) => does(node(m), q), putStatfs),
  define('access', 8, (does, m, q) => does(node(m), u32(m, 0), q), nothing),
  define('getxattr', 8, (does, m, q) => xattrList(does(node(m), text(m, 8), u32(m, 0), q), u32(m, 0)), putSized),
  define(
    'setxattr',
    8,
    (does, m, q) => {
      const name = text(m, 8);
      return does(node(m), name, { value: bytes(m, 8 + name.length + 1, u32(m, 0)), flags: u32(m, 4) }, q);
    },
    nothing,
  ),
  define('listxattr', 8, (does, m, q) => xattrList(does(node(m), u32(m, 0), q), u32(m, 0)), putSized),
  define('removexattr', 0, (does, m, q) => does(node(m), text(m, 0), q), nothing),
  define('getlk', 48, (does, m, q) => does(node(m), lock(m), q), putLock),
  define('setlk', 48, (does, m, q) => does(node(m), lock(m), q), nothing),
  define('setlkw', 48, (does, m, q) => does(node(m), lock(m), q), nothing),
  define(
    'fallocate',
    32,
    (does, m, q) =>
      does(
        node(m),
        { fh: number(m, 0), offset: offset(m, 8, number(m, 16)), length: number(m, 16), mode: u32(m, 24) },
        q,
      ),
    nothing,
  ),
  define(
    'lseek',
    24,
    // lseek(2): there are neither data nor a hole behind the end.
    (does, m, q) => does(node(m), { fh: number(m, 0), offset: offset(m, 8, 0, 'ENXIO'), whence: u32(m, 16) }, q),
    putU64,
  ),
  define(
    'copyFileRange',
    56,
    (does, m, q) =>
      does(
        { node: node(m), fh: number(m, 0), offset: offset(m, 8, 0, 'EOVERFLOW') },
        { node: number(m, 16), fh: number(m, 24), offset: offset(m, 32) },
        number(m, 40),
        q,
      ),
    putU32,
  ),
];

/** By number: the one table of what is answered by a file system. */
export const table: readonly (Operation | undefined)[] = operations.reduce<(Operation | undefined)[]>((all, one) => {
  all[opcode[one.name]] = one;
  return all;
}, []);
