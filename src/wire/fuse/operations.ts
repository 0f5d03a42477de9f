/** Times are seconds and nanoseconds, as the server tells them. */
export interface Attr {
  readonly ino: number;
  readonly size: number;
  /** Of 512 bytes. */
  readonly blocks: number;
  readonly atime: number;
  readonly mtime: number;
  readonly ctime: number;
  readonly atimeNs: number;
  readonly mtimeNs: number;
  readonly ctimeNs: number;
  /** With the type of the file. */
  readonly mode: number;
  readonly nlink: number;
  readonly uid: number;
  readonly gid: number;
  readonly rdev: number;
  readonly blksize: number;
}

/** Node 0: there is no such name, and the kernel may remember that. */
export interface Entry {
  readonly node: number;
  readonly generation: number;
  /** Undefined only with node 0. */
  readonly attr: Attr | undefined;
  /** How long the kernel may rely on them, in ms. */
  readonly entryMs: number;
  readonly attrMs: number;
}

export interface AttrReply {
  readonly attr: Attr;
  readonly attrMs: number;
}

export interface Opened {
  /** A number of the file system's own, which comes with each request for the open file. */
  readonly fh: number;
  /** Of `openFlag`. */
  readonly flags: number;
}

export interface Statfs {
  readonly blocks: number;
  readonly bfree: number;
  readonly bavail: number;
  readonly files: number;
  readonly ffree: number;
  readonly bsize: number;
  readonly namelen: number;
  readonly frsize: number;
}

export interface Lock {
  readonly start: bigint;
  readonly end: bigint;
  /** F_RDLCK, F_WRLCK or F_UNLCK. */
  readonly type: number;
  readonly pid: number;
}

/** One name in a directory. `offset` is where to go on after it. */
export interface DirectoryEntry {
  readonly ino: number;
  readonly offset: bigint;
  /** As in a mode, without permissions. */
  readonly type: number;
  readonly name: Uint8Array;
}

/** For READDIRPLUS; without an entry the kernel looks the name up when it needs to. */
export interface DirectoryEntryPlus extends DirectoryEntry {
  readonly entry: Entry | undefined;
}

/** Takes entries until there is no room for another; false: this one was not taken. */
export interface DirentWriter {
  add(entry: DirectoryEntryPlus): boolean;
}

/** Only what is to be set is there. */
export interface SetAttr {
  readonly mode?: number;
  readonly uid?: number;
  readonly gid?: number;
  readonly size?: number;
  readonly atime?: Time | 'now';
  readonly mtime?: Time | 'now';
  readonly fh?: number;
}

export interface Time {
  readonly seconds: number;
  readonly nanoseconds: number;
}

/** Who asks, and for which request. The kernel does not tell supplementary groups. */
export interface Request {
  readonly uid: number;
  readonly gid: number;
  readonly pid: number;
  /** Where the request lies: a place of the reader's, which stays the request's until it is answered. */
  readonly place: number;
  /** A predecessor received it and may have answered it. In that case the kernel drops the reply of this process. */
  readonly resent: boolean;
  /** Aborted when whoever waits for the answer was interrupted. Made when first asked for. */
  readonly signal: AbortSignal;
}

/** READ's data: `length` bytes in `buffer` from `outHeaderSize` on; the room before them is for the header of the answer. */
export interface ReadReply {
  readonly buffer: Buffer;
  readonly length: number;
}

type Name = Buffer;
type MaybePromise<T> = T | Promise<T>;

/**
 * A file system. What is not there is answered with ENOSYS, which the kernel remembers for most operations and then does
 * without. Names are bytes, without a NUL or a slash. Buffers of a request are valid until it is answered.
 */
export interface Operations {
  lookup(parent: number, name: Name, request: Request): MaybePromise<Entry>;
  /** Not answered, and must not fail. */
  forget(node: number, lookups: number): void;
  getattr(node: number, fh: number | undefined, request: Request): MaybePromise<AttrReply>;
  setattr(node: number, set: SetAttr, request: Request): MaybePromise<AttrReply>;
  readlink(node: number, request: Request): MaybePromise<Uint8Array>;
  symlink(parent: number, name: Name, target: Buffer, request: Request): MaybePromise<Entry>;
  mknod(
    parent: number,
    name: Name,
    how: { readonly mode: number; readonly rdev: number },
    request: Request,
  ): MaybePromise<Entry>;
  mkdir(parent: number, name: Name, mode: number, request: Request): MaybePromise<Entry>;
  unlink(parent: number, name: Name, request: Request): MaybePromise<void>;
  rmdir(parent: number, name: Name, request: Request): MaybePromise<void>;
  rename(
    from: { readonly parent: number; readonly name: Name },
    to: { readonly parent: number; readonly name: Name },
    flags: number,
    request: Request,
  ): MaybePromise<void>;
  link(node: number, parent: number, name: Name, request: Request): MaybePromise<Entry>;
  open(node: number, flags: number, request: Request): MaybePromise<Opened>;
  create(
    parent: number,
    name: Name,
    how: { readonly flags: number; readonly mode: number },
    request: Request,
  ): MaybePromise<{ readonly entry: Entry; readonly opened: Opened }>;
  read(
    node: number,
    at: { readonly fh: number; readonly offset: number; readonly size: number },
    request: Request,
  ): MaybePromise<ReadReply>;
  /** Gives how many bytes were taken. `openFlags`: O_SYNC and the like. */
  write(
    node: number,
    at: { readonly fh: number; readonly offset: number; readonly flags: number; readonly openFlags: number },
    data: Buffer,
    request: Request,
  ): MaybePromise<number>;
  flush(node: number, fh: number, request: Request): MaybePromise<void>;
  /** The last holder of an open file has closed it. `unlock`: whose flock ends with it. */
  release(
    node: number,
    how: { readonly fh: number; readonly unlock: bigint | undefined },
    request: Request,
  ): MaybePromise<void>;
  fsync(node: number, how: { readonly fh: number; readonly dataOnly: boolean }, request: Request): MaybePromise<void>;
  opendir(node: number, flags: number, request: Request): MaybePromise<Opened>;
  readdir(
    node: number,
    at: { readonly fh: number; readonly offset: bigint; readonly plus: boolean },
    into: DirentWriter,
    request: Request,
  ): MaybePromise<void>;
  releasedir(node: number, fh: number, request: Request): MaybePromise<void>;
  fsyncdir(
    node: number,
    how: { readonly fh: number; readonly dataOnly: boolean },
    request: Request,
  ): MaybePromise<void>;
  statfs(node: number, request: Request): MaybePromise<Statfs>;
  access(node: number, mask: number, request: Request): MaybePromise<void>;
  getxattr(node: number, name: Name, size: number, request: Request): MaybePromise<Uint8Array | number>;
  setxattr(
    node: number,
    name: Name,
    set: { readonly value: Buffer; readonly flags: number },
    request: Request,
  ): MaybePromise<void>;
  listxattr(node: number, size: number, request: Request): MaybePromise<Uint8Array | number>;
  removexattr(node: number, name: Name, request: Request): MaybePromise<void>;
  getlk(node: number, about: LockRequest, request: Request): MaybePromise<Lock>;
  setlk(node: number, about: LockRequest, request: Request): MaybePromise<void>;
  setlkw(node: number, about: LockRequest, request: Request): MaybePromise<void>;
  fallocate(
    node: number,
    what: { readonly fh: number; readonly offset: number; readonly length: number; readonly mode: number },
    request: Request,
  ): MaybePromise<void>;
  lseek(
    node: number,
    to: { readonly fh: number; readonly offset: number; readonly whence: number },
    request: Request,
  ): MaybePromise<number>;
  copyFileRange(
    from: { readonly node: number; readonly fh: number; readonly offset: number },
    to: { readonly node: number; readonly fh: number; readonly offset: number },
    length: number,
    request: Request,
  ): MaybePromise<number>;
}

export interface LockRequest {
  readonly fh: number;
  readonly owner: bigint;
  readonly lock: Lock;
  readonly isFlock: boolean;
}
