import type { ErrnoName } from '#wire/fuse/errno.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';

/**
 * What must outlive the process that serves a mount, as the file system sees it. The real thing lies in the journal
 * (journal/), memory that a successor finds as its predecessor left it, whatever killed that.
 */

/** A file, directory or link that the kernel knows by a number. */
export interface Node {
  readonly id: number;
  /** Of the number: it is used again for something else. */
  readonly generation: number;
  readonly handle: FileHandle;
  /** Open files of this mount; what is removed while there are any gets another name first. */
  readonly opens: number;
}

export interface Nodes {
  /**
   * The node of a handle, made if there is none. The kernel is about to be told of it: counts one lookup, for the request at
   * that place, however often it comes. Throws ENOMEM where there is no room for another.
   */
  addLookup(handle: FileHandle, place?: number): Node;
  /** The same for one of a listing, which counts many. */
  addListed(handle: FileHandle, place: number): Node;
  /** The kernel will not be told by the request at that place after all. */
  removeLookup(id: number, place: number): void;
  /** Whether another can be made. If not, that is asked for. */
  hasRoom(): boolean;
  /** Called when there are many, with how many too many: the kernel is to be made to let go of some. */
  onPressure(give: (count: number) => void): void;
  /** Undefined: the kernel should not know it. The root is node 1, always there. */
  get(id: number): Node | undefined;
  /** The node that has this handle, if the kernel knows it. */
  find(handle: FileHandle): Node | undefined;
  /** The kernel has let go of so many lookups; with the last the node is gone. */
  forget(id: number, lookups: number): void;
  /** By the request at that place, however often it comes. */
  opened(id: number, place?: number): void;
  closed(id: number, place?: number): void;
  /** The server has given the same file another handle (it was stale). */
  changeHandle(id: number, handle: FileHandle): void;
  /** Where the file is that was removed while open, or is about to be; that name goes with the last close. */
  hide(id: number, at: Hidden | undefined): void;
  hidden(id: number): Hidden | undefined;
  /** Why data of the file got lost after they were answered, as long as somebody has it open who was not told. */
  setLost(id: number, why: ErrnoName | undefined): void;
  lost(id: number): ErrnoName | undefined;
  /** Somebody was told. As long as nobody was, it concerns also whoever opens the file from now on. */
  setLossTold(id: number): void;
  isLossTold(id: number): boolean;
}

export interface Hidden {
  readonly directory: FileHandle;
  readonly name: string;
}

/** What tells, after a crash, whether a call that changes something was done. Written before it is sent. */
export type Proof =
  /** Something is made with this time (see creation-marks.ts): what is there with it is ours. */
  | { readonly kind: 'made'; readonly seconds: number; readonly nanoseconds: number }
  /** What the name meant. */
  | { readonly kind: 'gone'; readonly handle: FileHandle }
  /** What is moved. */
  | { readonly kind: 'moved'; readonly handle: FileHandle };

/** Memory of WRITEs, which outlives the process. */
export interface JournaledWrites {
  /** It is about to be answered: from now on its data stay until they are freed. */
  keep(place: number): void;
  free(place: number): void;
}

/** A WRITE that was answered, and whose data may not be on the server's disk. */
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
  /** Of the request at this place. Undefined: nothing was sent for it yet. Else it comes again after a crash. */
  find(place: number): Proof | undefined;
  write(place: number, proof: Proof): void;
}
