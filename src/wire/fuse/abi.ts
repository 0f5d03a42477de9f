/** The constants of include/uapi/linux/fuse.h, protocol 7.31 to 7.45. All numbers are in the machine's byte order. */

export const protocol = { major: 7, oldestMinor: 31, newestMinor: 45 } as const;

export const inHeaderSize = 40;
export const outHeaderSize = 16;
export const attrSize = 88;
export const entrySize = 128;
export const openSize = 16;

/** The size of the headers of a WRITE, in addition to its data, that the kernel requires in a read buffer. */
export const requestOverhead = 4096;
export const pageSize = 4096;

export const opcode = {
  lookup: 1,
  forget: 2,
  getattr: 3,
  setattr: 4,
  readlink: 5,
  symlink: 6,
  mknod: 8,
  mkdir: 9,
  unlink: 10,
  rmdir: 11,
  rename: 12,
  link: 13,
  open: 14,
  read: 15,
  write: 16,
  statfs: 17,
  release: 18,
  fsync: 20,
  setxattr: 21,
  getxattr: 22,
  listxattr: 23,
  removexattr: 24,
  flush: 25,
  init: 26,
  opendir: 27,
  readdir: 28,
  releasedir: 29,
  fsyncdir: 30,
  getlk: 31,
  setlk: 32,
  setlkw: 33,
  access: 34,
  create: 35,
  interrupt: 36,
  bmap: 37,
  destroy: 38,
  ioctl: 39,
  poll: 40,
  notifyReply: 41,
  batchForget: 42,
  fallocate: 43,
  readdirplus: 44,
  rename2: 45,
  lseek: 46,
  copyFileRange: 47,
  setupMapping: 48,
  removeMapping: 49,
  syncfs: 50,
  tmpfile: 51,
  statx: 52,
} as const;
export type OpName = keyof typeof opcode;

/** The bit numbers of the INIT flags. Flags from 32 on are in a second word, which kernels before 6.0 do not send. */
export const initFlag = {
  asyncRead: 0,
  posixLocks: 1,
  atomicOTrunc: 3,
  exportSupport: 4,
  bigWrites: 5,
  dontMask: 6,
  flockLocks: 10,
  autoInvalData: 12,
  doReaddirplus: 13,
  readdirplusAuto: 14,
  asyncDio: 15,
  writebackCache: 16,
  parallelDirops: 18,
  handleKillpriv: 19,
  abortError: 21,
  maxPages: 22,
  cacheSymlinks: 23,
  noOpendirSupport: 24,
  explicitInvalData: 25,
  handleKillprivV2: 28,
  setxattrExt: 29,
  initExt: 30,
  createSuppGroup: 34,
  hasExpireOnly: 35,
  directIoAllowMmap: 36,
  hasResend: 39,
} as const;
export type InitFlag = keyof typeof initFlag;

/** The flags in the replies to OPEN, CREATE and OPENDIR. */
export const openFlag = {
  directIo: 1,
  keepCache: 2,
  nonseekable: 4,
  cacheDir: 8,
  noflush: 32,
  parallelDirectWrites: 64,
};

/** The bits for the attributes that a SETATTR sets. */
export const setattrField = {
  mode: 1,
  uid: 2,
  gid: 4,
  size: 8,
  atime: 16,
  mtime: 32,
  fh: 64,
  atimeNow: 128,
  mtimeNow: 256,
  lockOwner: 512,
  ctime: 1024,
  killSuidgid: 2048,
} as const;

export const getattrFlag = { fh: 1 } as const;
export const releaseFlag = { flush: 1, flockUnlock: 2 } as const;
export const fsyncFlag = { dataOnly: 1 } as const;
export const lockFlag = { flock: 1 } as const;
export const renameFlag = { noReplace: 1, exchange: 2, whiteout: 4 } as const;

export const notifyCode = { invalInode: 2, invalEntry: 3, delete: 6, resend: 7 } as const;
/** The kernel sets this bit (the highest of 64) in the unique number of a resent request. */
export const resentBit = 0x8000_0000;

export const rootNode = 1;
