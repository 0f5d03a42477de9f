import { constants } from 'node:fs';
import { unlessAborted } from '#base/aborted.ts';
import { outHeaderSize, renameFlag, rootNode } from '#wire/fuse/abi.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Attr, Entry, Lock, Operations, Request, SetAttr, Time } from '#wire/fuse/operations.ts';

const type = { directory: 0o040000, regular: 0o100000, link: 0o120000 } as const;
const unlocked = 2;

interface Node {
  readonly ino: number;
  mode: number;
  uid: number;
  gid: number;
  rdev: number;
  nlink: number;
  data: Buffer;
  readonly names: Map<string, Node>;
  readonly attributes: Map<string, Buffer>;
  readonly locks: { readonly owner: bigint; readonly lock: Lock }[];
  times: { atime: Time; mtime: Time; ctime: Time };
  lookups: number;
}

/** The state that tests inspect. */
export interface MemoryFileSystem {
  readonly operations: Operations;
  /** The number of nodes that the kernel knows, without the root. */
  known(): number;
  /** The names of the requests in order. */
  readonly calls: string[];
  /** Delays READs until the returned object is disposed of. Other requests continue. */
  hold(): Disposable;
}

const now = (): Time => ({ seconds: Math.floor(Date.now() / 1000), nanoseconds: (Date.now() % 1000) * 1e6 });
const validMs = 60_000;

/** A file system in memory with every FUSE operation, to test the protocol with a real kernel. */
export function createMemoryFileSystem(): MemoryFileSystem {
  const nodes = new Map<number, Node>();
  const asked: string[] = [];
  let gate: Promise<void> | undefined;
  const make = (mode: number, { uid, gid }: Pick<Request, 'uid' | 'gid'>): Node => {
    const time = now();
    const node: Node = {
      ino: nodes.size + 1,
      mode,
      uid,
      gid,
      rdev: 0,
      nlink: 1,
      data: Buffer.alloc(0),
      lookups: 0,
      names: new Map(),
      attributes: new Map(),
      locks: [],
      times: { atime: time, mtime: time, ctime: time },
    };
    nodes.set(node.ino, node);
    return node;
  };
  make(type.directory | 0o755, { uid: 0, gid: 0 });

  const at = (ino: number): Node => nodes.get(ino) ?? raise('ESTALE');
  const child = (parent: number, name: Buffer): Node =>
    at(parent).names.get(name.toString('latin1')) ?? raise('ENOENT');
  const entry = (node: Node): Entry => {
    node.lookups++;
    return { node: node.ino, generation: 1, attr: attr(node), entryMs: validMs, attrMs: validMs };
  };
  const put = (parent: number, name: Buffer, node: Node): Entry => {
    const { names } = at(parent);
    if (names.has(name.toString('latin1'))) raise('EEXIST');
    names.set(name.toString('latin1'), node);
    return entry(node);
  };
  const take = (parent: number, name: Buffer, isDirectory: boolean): void => {
    const node = child(parent, name);
    const is = (node.mode & 0o170000) === type.directory;
    if (is !== isDirectory) raise(is ? 'EISDIR' : 'ENOTDIR');
    if (node.names.size > 0) raise('ENOTEMPTY');
    node.nlink--;
    at(parent).names.delete(name.toString('latin1'));
  };
  const resize = (node: Node, size: number): void => {
    const grown = Buffer.alloc(size);
    node.data.copy(grown);
    node.data = grown;
  };
  const change = (node: Node, set: SetAttr): void => {
    if (set.size !== undefined) resize(node, set.size);
    if (set.mode !== undefined) node.mode = (node.mode & 0o170000) | set.mode;
    node.uid = set.uid ?? node.uid;
    node.gid = set.gid ?? node.gid;
    const { atime, mtime } = set;
    node.times = {
      atime: atime === 'now' ? now() : (atime ?? node.times.atime),
      mtime: mtime === 'now' ? now() : (mtime ?? node.times.mtime),
      ctime: now(),
    };
  };
  const forget = (ino: number, lookups: number): void => {
    const node = nodes.get(ino);
    if (node !== undefined) node.lookups -= lookups;
  };

  const operations: Operations = {
    lookup: (parent, name) => entry(child(parent, name)),
    forget,
    getattr: (node) => ({ attr: attr(at(node)), attrMs: validMs }),
    setattr: (node, set) => {
      change(at(node), set);
      return { attr: attr(at(node)), attrMs: validMs };
    },
    readlink: (node) => at(node).data,
    symlink: (parent, name, target, request) => {
      const node = make(type.link | 0o777, request);
      node.data = Buffer.from(target);
      return put(parent, name, node);
    },
    mknod: (parent, name, { mode, rdev }, request) => {
      const node = make(mode, request);
      node.rdev = rdev;
      return put(parent, name, node);
    },
    mkdir: (parent, name, mode, request) => put(parent, name, make(type.directory | mode, request)),
    unlink: (parent, name) => take(parent, name, false),
    rmdir: (parent, name) => take(parent, name, true),
    rename: (from, to, flags) => {
      const moved = child(from.parent, from.name);
      const target = at(to.parent).names.get(to.name.toString('latin1'));
      if (target !== undefined && (flags & renameFlag.noReplace) !== 0) raise('EEXIST');
      at(from.parent).names.delete(from.name.toString('latin1'));
      at(to.parent).names.set(to.name.toString('latin1'), moved);
      if ((flags & renameFlag.exchange) === 0) return;
      at(from.parent).names.set(from.name.toString('latin1'), target ?? raise('ENOENT'));
    },
    link: (node, parent, name) => {
      at(node).nlink++;
      return put(parent, name, at(node));
    },
    open: (node, flags) => {
      if ((flags & constants.O_TRUNC) !== 0) resize(at(node), 0);
      return { fh: 77, flags: 0 };
    },
    create: (parent, name, { mode }, request) => ({
      entry: put(parent, name, make(type.regular | (mode & 0o7777), request)),
      opened: { fh: 77, flags: 0 },
    }),
    read: async (node, { offset, size }, { signal }) => {
      await opened(gate, signal);
      const data = at(node).data.subarray(offset, offset + size);
      return { buffer: Buffer.concat([Buffer.alloc(outHeaderSize), data]), length: data.length };
    },
    write: (node, { offset }, data) => {
      const file = at(node);
      if (file.data.length < offset + data.length) resize(file, offset + data.length);
      data.copy(file.data, offset);
      return data.length;
    },
    flush: () => undefined,
    release: (node, { unlock }) => {
      const { locks } = at(node);
      locks.splice(0, locks.length, ...locks.filter(({ owner }) => owner !== unlock));
    },
    fsync: () => undefined,
    opendir: () => ({ fh: 88, flags: 0 }),
    readdir: (node, { offset, plus }, into) => {
      const names = [...at(node).names];
      for (let i = Number(offset); i < names.length; i++) {
        const [name, found] = names[i] as [string, Node];
        const about = { ino: found.ino, offset: BigInt(i + 1), type: found.mode, name: Buffer.from(name, 'latin1') };
        const full = plus ? entry(found) : undefined;
        if (into.add({ ...about, entry: full })) continue;
        if (plus) found.lookups--;
        return;
      }
    },
    releasedir: () => undefined,
    fsyncdir: () => undefined,
    statfs: () => ({
      blocks: 2 ** 33,
      bfree: 2 ** 32,
      bavail: 1000,
      files: 500,
      ffree: 400,
      bsize: 4096,
      namelen: 255,
      frsize: 4096,
    }),
    access: () => undefined,
    getxattr: (node, name) => at(node).attributes.get(name.toString()) ?? raise('ENODATA'),
    setxattr: (node, name, { value }) => void at(node).attributes.set(name.toString(), Buffer.from(value)),
    listxattr: (node) => Buffer.from([...at(node).attributes.keys()].map((name) => `${name}\0`).join('')),
    removexattr: (node, name) => void (at(node).attributes.delete(name.toString()) || raise('ENODATA')),
    getlk: (node, { lock, owner }) =>
      at(node).locks.find((one) => one.owner !== owner)?.lock ?? { ...lock, type: unlocked },
    setlk: (node, { lock, owner }) => {
      const { locks } = at(node);
      if (lock.type !== unlocked && locks.some((one) => one.owner !== owner)) raise('EAGAIN');
      locks.splice(0, locks.length, ...locks.filter((one) => one.owner !== owner));
      if (lock.type !== unlocked) locks.push({ owner, lock });
    },
    setlkw: (node, about, request) => operations.setlk(node, about, request),
    fallocate: (node, { offset, length }) => {
      if (at(node).data.length < offset + length) resize(at(node), offset + length);
    },
    lseek: (node, { offset, whence }) => (whence === 3 ? offset : at(node).data.length),
    copyFileRange: (from, to, length, request) =>
      operations.write(
        to.node,
        { fh: to.fh, offset: to.offset, flags: 0, openFlags: 0 },
        at(from.node).data.subarray(from.offset, from.offset + length),
        request,
      ),
  };

  return {
    operations: noted(operations, asked),
    calls: asked,
    known: () => [...nodes.values()].filter(({ ino, lookups }) => ino !== rootNode && lookups > 0).length,
    hold: () => {
      const { promise, resolve } = Promise.withResolvers<void>();
      gate = promise;
      return {
        [Symbol.dispose]: () => {
          gate = undefined;
          resolve();
        },
      };
    },
  };
}

function noted(operations: Operations, asked: string[]): Operations {
  return new Proxy(operations, {
    get: (all, name: keyof Operations) => {
      asked.push(name);
      return all[name];
    },
  });
}

async function opened(gate: Promise<void> | undefined, signal: AbortSignal): Promise<void> {
  if (gate === undefined) return;
  await unlessAborted(gate, signal);
}

function attr({ ino, mode, uid, gid, rdev, nlink, data, times: { atime, mtime, ctime } }: Node): Attr {
  return {
    ino,
    mode,
    uid,
    gid,
    rdev,
    nlink,
    size: data.length,
    blocks: Math.ceil(data.length / 512),
    blksize: 4096,
    atime: atime.seconds,
    mtime: mtime.seconds,
    ctime: ctime.seconds,
    atimeNs: atime.nanoseconds,
    mtimeNs: mtime.nanoseconds,
    ctimeNs: ctime.nanoseconds,
  };
}

function raise(code: ConstructorParameters<typeof Errno>[0]): never {
  throw new Errno(code);
}
