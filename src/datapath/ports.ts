import type { ErrnoName } from '#wire/fuse/errno.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';

/**
 * What must outlive the process that serves a mount, as interfaces of the file system. The implementation is the
 * journal (journal/), memory that a successor finds as its predecessor left it.
 */

/** An inode that the kernel knows by a number. */
export interface Node {
  readonly id: number;
  /** The number's generation: numbers are reused. */
  readonly generation: number;
  readonly handle: FileHandle;
  /** Open files of this mount; a file removed while open gets a hidden name first. */
  readonly opens: number;
}

export interface Nodes {
  /**
   * The node of a handle, created if absent. Counts one lookup, once per request at that place even if it is resent.
   * Throws ENOMEM if there is no room.
   */
  addLookup(handle: FileHandle, place?: number): Node;
  /** Like `addLookup`, for an entry of a listing: one request counts many lookups. */
  addListed(handle: FileHandle, place: number): Node;
  /** Undoes a lookup: the request at that place does not report it to the kernel. */
  removeLookup(id: number, place: number): void;
  /** Whether another node fits. If not, asks for room. */
  hasRoom(): boolean;
  /** Called with the number of excess nodes: make the kernel drop some. */
  onPressure(shrink: (count: number) => void): void;
  /** Undefined: unknown to the kernel. The root is node 1 and always exists. */
  get(id: number): Node | undefined;
  /** The node that has this handle, if the kernel knows it. */
  find(handle: FileHandle): Node | undefined;
  /** The kernel forgot this many lookups; the last one removes the node. */
  forget(id: number, lookups: number): void;
  /** Counts an open once per request at that place, even if it is resent. */
  addOpen(id: number, place?: number): void;
  removeOpen(id: number, place?: number): void;
  /** The server has given the same file a new handle (the old one was stale). */
  changeHandle(id: number, handle: FileHandle): void;
  /** Records the hidden name of a file removed while open. The last close removes it. */
  setHiddenName(id: number, hiddenName: HiddenName | undefined): void;
  hiddenName(id: number): HiddenName | undefined;
  /** The error by which acknowledged data were lost, until every open file has reported it. */
  setDataLoss(id: number, code: ErrnoName | undefined): void;
  dataLoss(id: number): ErrnoName | undefined;
  /** Records that the loss was reported once. Until then, it is also reported to later opens. */
  setLossReported(id: number): void;
  isLossReported(id: number): boolean;
}

export interface HiddenName {
  readonly directory: FileHandle;
  readonly name: string;
}

/** Proof, after a crash, of whether a call that changes something was executed. Written before the call is sent. */
export type Proof =
  /** An object is created with this time (see creation-marks.ts): an object with this time is ours. */
  | { readonly kind: 'made'; readonly seconds: number; readonly nanoseconds: number }
  /** The object that the name refers to before its removal. */
  | { readonly kind: 'gone'; readonly handle: FileHandle }
  /** The object that is renamed or linked. */
  | { readonly kind: 'moved'; readonly handle: FileHandle };

/** Journal memory of WRITEs, which outlives the process. */
export interface JournaledWrites {
  /** The WRITE is about to be answered: its data stay until freed. */
  keep(place: number): void;
  free(place: number): void;
}

/** An answered WRITE whose data may not be on the server's disk. */
export interface AcknowledgedWrite {
  readonly place: number;
  readonly node: number;
  readonly fh: number;
  readonly uid: number;
  readonly gid: number;
  readonly offset: number;
  readonly data: Uint8Array;
}

export interface Proofs {
  /**
   * The proof of the request at this place. Undefined: nothing was sent yet; otherwise the request was resent after a
   * crash.
   */
  find(place: number): Proof | undefined;
  write(place: number, proof: Proof): void;
}
