/**
 * Where things lie in the journal. Both sides of an upgrade read it: a change of anything here is a new version (but not what is added
 * in space that was free, and means nothing where it is zero), and the
 * successor of another version must be able to read both.
 */
export const version = 1;
export const magic = 0x53_57_4a_31;

const pageSize = 4096;

/** Most bytes of one FUSE READ or WRITE. */
export const maxTransfer = 1024 * 1024;
export const slotSize = maxTransfer + pageSize;

export const head = {
  magic: 0,
  version: 4,
  heartbeat: 8,
  slots: 12,
  chunks: 16,
  /** 1: the data path was told to stop. Its end is no request's fault. */
  stopping: 20,
  /** The line (plus one) of the request that alone is to blame if the data path ends now; 0: any may be. */
  suspect: 24,
  size: pageSize,
} as const;

export const mountRow = {
  used: 0,
  minor: 4,
  flags: 8,
  moreFlags: 12,
  idLength: 16,
  rootLength: 20,
  id: 24,
  root: 96,
  /** What it has added to a volume that is held to its size, and in which epoch of the ledger: 64 bits each. */
  epoch: 160,
  growth: 168,
  size: 176,
} as const;
export const mostMounts = 1024;
export const longestMountId = mountRow.root - mountRow.id;

/** One line per request that was read and not answered. Short requests lie in it, others in a cell, long ones in a slot. */
export const line = {
  mount: 0,
  phase: 4,
  proof: 8,
  handleLength: 12,
  seconds: 16,
  /** Of a WRITE that was answered, which has no proof. */
  order: 16,
  nanoseconds: 24,
  replyLength: 28,
  /** The cell or slot that the request lies in (cells are counted first), plus one; 0: here. */
  cell: 32,
  /** The low half of the request's number if whoever waits for it was interrupted; else 0, or what an older request left. */
  interrupted: 36,
  handle: 40,
  reply: 104,
  /** What the request counted: a node with how far that came, and what its count becomes. */
  looked: 328,
  opened: 336,
  /** How many nodes a listing has counted. */
  listed: 344,
  /** How many data paths ended while it may have been the cause. */
  outlived: 348,
  /** When it was read, in ms since the machine was started: nobody can set that. 0 where it was not noted. */
  readAt: 352,
  request: 360,
  /** Which those are: behind the request, which is short. */
  list: 488,
  size: 1024,
} as const;
export const longestReply = line.looked - line.reply;
export const longestInline = line.size - line.request;
export const mostListed = (line.size - line.list) / 4;
/** Requests that can wait for an answer at once. */
export const lines = 4096;

export const phase = { empty: 0, taken: 1, sent: 2, behind: 3, done: 4 } as const;

/** A slot that holds a write of 4 KiB would be a megabyte that nobody else can use: requests of middle size are moved here. */
export const cells = [
  { size: 8 * 1024, count: 2048 },
  { size: 72 * 1024, count: 256 },
] as const;
export const cellCount = cells[0].count + cells[1].count;

/** One word per slot: 0 free, `inUse` its request has a line, else the mount (plus one) whose next request goes there. */
export const inUse = 0x4000_0000;

/**
 * Two for each mount, whatever others hold: for a long request, and for one that was read and has no line yet. What a mount holds beyond
 * that must leave these.
 */
export const reservedSlots = 2 * mostMounts;

/** One record per node, or per place of a file that was removed while open. */
export const record = {
  owner: 0,
  generation: 4,
  lookups: 8,
  opens: 12,
  handleLength: 16,
  hidden: 20,
  handle: 24,
  /** Of a node: the hash of its handle. 0: unknown. */
  hash: 88,
  /** The generation that it is the hash of. Another: a program that knows of no hash made the node, and something else lies there. */
  hashed: 92,
  /** Of a hidden file. */
  name: 88,
  /** Of a node: the error by which answered data of it got lost, and not everybody knows yet. Behind all names. */
  lost: 124,
  size: 128,
} as const;
/** Owner of a record that says where a removed file is. */
export const hiddenNameOwner = 0xffff_ffff;
/** Beside that error: somebody knows. */
export const lossTold = 0x8000_0000;
export const longestHandle = record.name - record.handle;
export const longestName = record.lost - record.name - 4;
export const chunkSize = 1024 * 1024;
export const recordsPerChunk = chunkSize / record.size;
/** About six million nodes would be 800 MB: the kernel lets go of some long before. */
export const mostChunks = 256;

const upTo = (size: number): number => Math.ceil(size / pageSize) * pageSize;

export const mountsAt = head.size;
export const linesAt = mountsAt + upTo(mostMounts * mountRow.size);
export const ownersAt = linesAt + lines * line.size;
export const slotsAt = (slots: number): number => ownersAt + upTo(slots * 4);
export const cellsAt = (slots: number): number => slotsAt(slots) + slots * slotSize;
export const cellsSize = cells[0].size * cells[0].count + cells[1].size * cells[1].count;
export const chunksAt = (slots: number): number => cellsAt(slots) + cellsSize;

/** Where a field of a line lies: in bytes, and in words. */
export const lineAt = (place: number, field: number): number => linesAt + place * line.size + field;
export const lineWord = (place: number, field: number): number => lineAt(place, field) / 4;
