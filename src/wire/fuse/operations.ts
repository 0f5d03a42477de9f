/** The attributes of a node. Times are in seconds and nanoseconds. */
export interface Attr {
  readonly ino: number;
  readonly size: number;
  /** In units of 512 bytes. */
  readonly blocks: number;
  readonly atime: number;
  readonly mtime: number;
  readonly ctime: number;
  readonly atimeNs: number;
  readonly mtimeNs: number;
  readonly ctimeNs: number;
  /** Includes the file type. */
  readonly mode: number;
  readonly nlink: number;
  readonly uid: number;
  readonly gid: number;
  readonly rdev: number;
  readonly blksize: number;
}

/** Node 0 means that the name does not exist, which the kernel may cache. */
export interface Entry {
  readonly node: number;
  readonly generation: number;
  /** Undefined only with node 0. */
  readonly attr: Attr | undefined;
  /** How long the kernel may cache the name and the attributes, in ms. */
  readonly entryMs: number;
  readonly attrMs: number;
}

export interface AttrReply {
  readonly attr: Attr;
  readonly attrMs: number;
}

export interface OpenReply {
  /** The file handle: a number that the file system chooses, and that each request for the open file has. */
  readonly fh: number;
  /** A combination of `openFlag`. */
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

/** One name in a directory. `offset` is where to continue after it. */
export interface DirectoryEntry {
  readonly ino: number;
  readonly offset: bigint;
  /** The file type bits of a mode. */
  readonly type: number;
  readonly name: Uint8Array;
}

/** For READDIRPLUS. Without an entry the kernel looks the name up when needed. */
export interface DirectoryEntryPlus extends DirectoryEntry {
  readonly entry: Entry | undefined;
}

/** Collects the entries of a READDIR reply. `add` returns false if the entry did not fit. */
export interface DirentWriter {
  add(entry: DirectoryEntryPlus): boolean;
}

/** The attributes that a SETATTR sets. A missing attribute stays unchanged. */
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

/** The caller of a request. The kernel does not send supplementary groups. */
export interface Request {
  readonly uid: number;
  readonly gid: number;
  readonly pid: number;
  /** The index of the request's memory, which belongs to the request until it is answered. */
  readonly slot: number;
  /** A previous server process received the request and may have answered it. If it did, the kernel drops the reply of this process. */
  readonly resent: boolean;
  /** Aborted when the waiting process is interrupted. Created on first access. */
  readonly signal: AbortSignal;
}

/**
 * The data of a READ: `length` bytes in `buffer` from `outHeaderSize` on; the bytes before are reserved for the reply's header.
 */
export interface ReadReply {
  readonly buffer: Buffer;
  readonly length: number;
}

type Name = Buffer;
type MaybePromise<T> = T | Promise<T>;

/**
 * A file system. Missing operations are answered with ENOSYS, which makes the kernel stop sending most of them. Names are bytes
 * without NUL and slash. The buffers of a request are valid until it is answered.
 */
export interface Operations {
  lookup(parent: number, name: Name, request: Request): MaybePromise<Entry>;
  /** Has no reply and must not fail. */
  forget(node: number, lookups: number): void;
  getattr(node: number, fh: number | undefined, request: Request): MaybePromise<AttrReply>;
  setattr(node: number, attributes: SetAttr, request: Request): MaybePromise<AttrReply>;
  readlink(node: number, request: Request): MaybePromise<Uint8Array>;
  symlink(parent: number, name: Name, target: Buffer, request: Request): MaybePromise<Entry>;
  mknod(
    parent: number,
    name: Name,
    options: { readonly mode: number; readonly rdev: number },
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
  open(node: number, flags: number, request: Request): MaybePromise<OpenReply>;
  create(
    parent: number,
    name: Name,
    options: { readonly flags: number; readonly mode: number },
    request: Request,
  ): MaybePromise<{ readonly entry: Entry; readonly opened: OpenReply }>;
  read(
    node: number,
    range: { readonly fh: number; readonly offset: number; readonly size: number },
    request: Request,
  ): MaybePromise<ReadReply>;
  /** Returns the number of bytes written. `openFlags`: the flags of the open file, such as O_SYNC. */
  write(
    node: number,
    options: { readonly fh: number; readonly offset: number; readonly flags: number; readonly openFlags: number },
    data: Buffer,
    request: Request,
  ): MaybePromise<number>;
  flush(node: number, fh: number, request: Request): MaybePromise<void>;
  /** The last descriptor of an open file was closed. `unlock`: the owner whose flock is released. */
  release(
    node: number,
    options: { readonly fh: number; readonly unlock: bigint | undefined },
    request: Request,
  ): MaybePromise<void>;
  fsync(
    node: number,
    options: { readonly fh: number; readonly dataOnly: boolean },
    request: Request,
  ): MaybePromise<void>;
  opendir(node: number, flags: number, request: Request): MaybePromise<OpenReply>;
  readdir(
    node: number,
    position: { readonly fh: number; readonly offset: bigint; readonly plus: boolean },
    writer: DirentWriter,
    request: Request,
  ): MaybePromise<void>;
  releasedir(node: number, fh: number, request: Request): MaybePromise<void>;
  fsyncdir(
    node: number,
    options: { readonly fh: number; readonly dataOnly: boolean },
    request: Request,
  ): MaybePromise<void>;
  statfs(node: number, request: Request): MaybePromise<Statfs>;
  access(node: number, mask: number, request: Request): MaybePromise<void>;
  getxattr(node: number, name: Name, size: number, request: Request): MaybePromise<Uint8Array | number>;
  setxattr(
    node: number,
    name: Name,
    attribute: { readonly value: Buffer; readonly flags: number },
    request: Request,
  ): MaybePromise<void>;
  listxattr(node: number, size: number, request: Request): MaybePromise<Uint8Array | number>;
  removexattr(node: number, name: Name, request: Request): MaybePromise<void>;
  getlk(node: number, lockRequest: LockRequest, request: Request): MaybePromise<Lock>;
  setlk(node: number, lockRequest: LockRequest, request: Request): MaybePromise<void>;
  setlkw(node: number, lockRequest: LockRequest, request: Request): MaybePromise<void>;
  fallocate(
    node: number,
    range: { readonly fh: number; readonly offset: number; readonly length: number; readonly mode: number },
    request: Request,
  ): MaybePromise<void>;
  lseek(
    node: number,
    position: { readonly fh: number; readonly offset: number; readonly whence: number },
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
