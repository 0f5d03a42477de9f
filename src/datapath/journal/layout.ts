/**
 * The layout of the journal. Both sides of an upgrade read it: any change needs a new version, and a successor must
 * read both. Exception: fields added in free space that mean nothing when zero.
 */
export const version = 1;
export const magic = 0x53_57_4a_31;

const pageSize = 4096;

/** Maximum size of one FUSE READ or WRITE. */
export const maxTransfer = 1024 * 1024;
export const slotSize = maxTransfer + pageSize;

export const head = {
  magic: 0,
  version: 4,
  heartbeat: 8,
  slots: 12,
  chunks: 16,
  /** 1: the data path has received a request to stop. No request in flight caused its exit. */
  stopping: 20,
  /** The line (plus one) of the only request to blame if the data path crashes now; 0: any request. */
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
  /** The mount's growth in a volume with a quota, and the ledger's epoch of it: 64 bits each. */
  epoch: 160,
  growth: 168,
  size: 176,
} as const;
export const maxMounts = 1024;
export const maxMountIdBytes = mountRow.root - mountRow.id;

/** One line per unanswered request. Short requests lie in the line, others in a cell, long ones in a slot. */
export const line = {
  mount: 0,
  phase: 4,
  proof: 8,
  handleLength: 12,
  seconds: 16,
  /** For an answered WRITE, which has no proof: its order. */
  order: 16,
  nanoseconds: 24,
  replyLength: 28,
  /** The cell or slot of the request (cells are counted first), plus one; 0: in this line. */
  cell: 32,
  /**
   * The low half of the request's unique id if its requester was interrupted; else 0, or a leftover of an older
   * request.
   */
  interrupted: 36,
  handle: 40,
  reply: 104,
  /** A reference count changed by the request: the node with the progress, and the new count. */
  looked: 328,
  opened: 336,
  /** Number of nodes counted by a listing. */
  listed: 344,
  /** Number of data paths that died while this request may have been the cause. */
  crashCount: 348,
  /** Time of reading in ms since boot, a clock that cannot be set. 0: not recorded. */
  readAt: 352,
  request: 360,
  /** The listing's nodes, stored behind its short request. */
  list: 488,
  size: 1024,
} as const;
export const maxReplyBytes = line.looked - line.reply;
export const maxInlineBytes = line.size - line.request;
export const maxListed = (line.size - line.list) / 4;
/** Maximum number of unanswered requests. */
export const lineCount = 4096;

export const phase = { empty: 0, taken: 1, sent: 2, behind: 3, done: 4 } as const;

/** A 4 KiB write in a slot would block a megabyte: requests of medium size are moved to cells. */
export const cells = [
  { size: 8 * 1024, count: 2048 },
  { size: 72 * 1024, count: 256 },
] as const;
export const cellCount = cells[0].count + cells[1].count;

/**
 * One word per slot: 0 free, `inUse`: its request has a line, else the mount (plus one) whose next request is read into
 * it.
 */
export const slotInUse = 0x4000_0000;

/**
 * Two slots per mount, however many other mounts hold: one for a long request, one for a request without a line. A
 * mount that takes more slots must leave these free.
 */
export const reservedSlots = 2 * maxMounts;

/** One record per node or per hidden name. */
export const record = {
  owner: 0,
  generation: 4,
  lookups: 8,
  opens: 12,
  handleLength: 16,
  hidden: 20,
  handle: 24,
  /** For a node: the hash of its handle. 0: unknown. */
  hash: 88,
  /**
   * The generation of that hash. If it differs, a program without hashes created the node, and the word is not a
   * hash.
   */
  hashed: 92,
  /** For a hidden name. */
  name: 88,
  /**
   * For a node: the error that lost acknowledged data, until every open file has reported it. Lies behind all names.
   */
  lost: 124,
  size: 128,
} as const;
/** Owner of a record with a hidden name. */
export const hiddenNameOwner = 0xffff_ffff;
/** Flag on that error: it was reported at least once. */
export const lossReportedFlag = 0x8000_0000;
export const maxHandleBytes = record.name - record.handle;
export const maxNameLength = record.lost - record.name - 4;
export const chunkSize = 1024 * 1024;
export const recordsPerChunk = chunkSize / record.size;
/** About six million nodes would take 800 MB: the kernel is asked to drop some long before. */
export const maxChunks = 256;

const pageAligned = (size: number): number => Math.ceil(size / pageSize) * pageSize;

export const mountsAt = head.size;
export const linesAt = mountsAt + pageAligned(maxMounts * mountRow.size);
export const ownersAt = linesAt + lineCount * line.size;
export const slotsAt = (slots: number): number => ownersAt + pageAligned(slots * 4);
export const cellsAt = (slots: number): number => slotsAt(slots) + slots * slotSize;
export const cellsSize = cells[0].size * cells[0].count + cells[1].size * cells[1].count;
export const chunksAt = (slots: number): number => cellsAt(slots) + cellsSize;

/** Offset of a line's field, in bytes and in words. */
export const lineAt = (place: number, field: number): number => linesAt + place * line.size + field;
export const lineWord = (place: number, field: number): number => lineAt(place, field) / 4;
