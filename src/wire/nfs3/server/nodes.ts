import type { Descriptor } from './descriptors.ts';
import { equalsInConstantTime, type HandleContents, type Handles, maxParentHashes, parentHash } from './handles.ts';
import type { ByteString } from './names.ts';

/** A file or directory that a client has a handle of, or that was looked up. */
export interface Node extends HandleContents {
  /** The directory in which it was last seen; undefined for the root. */
  parent: Node | undefined;
  name: ByteString;
  /** The last link was removed. */
  isDeleted: boolean;
  /** The handle as a string: it takes a tenth of the memory of a Buffer, and there is one for each file. */
  handle: ByteString | undefined;
  /** An O_PATH descriptor of the directory. */
  directory: Descriptor | undefined;
  /** A descriptor for its data. */
  file: Descriptor | undefined;
  isWritable: boolean;
  /** The `parentHashes` of its entries. */
  childParentHashes: Uint8Array | undefined;
  /** The number of the last change to it through this server. */
  lastChange: number;
}

/** Recently used nodes by inode number: between `limit` and twice as many. */
export interface Nodes {
  add(node: Node): void;
  find(ino: bigint): Node | undefined;
  handleOf(node: Node): ByteString;
  /** Finds a node by the bytes of a handle in a received call. */
  byHandle(buffer: Buffer, from: number, end: number): Node | undefined;
}

const noParentHashes = new Uint8Array(0);

function parentHashesBelow(parent: Node | undefined): Uint8Array {
  if (parent?.parent === undefined) return noParentHashes;
  parent.childParentHashes ??= withOwnHash(parent);
  return parent.childParentHashes;
}

function withOwnHash({ parentHashes, ino }: Node): Uint8Array {
  if (parentHashes.length >= maxParentHashes) return parentHashes;
  const hashes = new Uint8Array(parentHashes.length + 1);
  hashes.set(parentHashes);
  hashes[parentHashes.length] = parentHash(ino);
  return hashes;
}

export function createNode(ino: bigint, birth: bigint, parent: Node | undefined, name: ByteString): Node {
  return {
    ino,
    birth,
    parent,
    name,
    parentHashes: parentHashesBelow(parent),
    isDeleted: false,
    handle: undefined,
    directory: undefined,
    file: undefined,
    isWritable: false,
    childParentHashes: undefined,
    lastChange: 0,
  };
}

/** Two inode numbers beyond 2^53 may share a key. One then evicts the other, which is found again by its parent hashes. */
const keyOf = (ino: bigint): number => Number(ino);

export function createNodes(handles: Handles, limit: number): Nodes {
  // Two generations, not an LRU list, which each call would have to change.
  let young = new Map<number, Node>();
  let old = new Map<number, Node>();

  function put(key: number, node: Node): void {
    young.set(key, node);
    if (young.size < limit) return;
    old = young;
    young = new Map();
  }

  function byKey(key: number): Node | undefined {
    const node = young.get(key);
    if (node !== undefined) return node;
    const older = old.get(key);
    if (older !== undefined) put(key, older);
    return older;
  }

  function handleOf(node: Node): ByteString {
    node.handle ??= handles.create(node);
    return node.handle;
  }

  return {
    add: (node) => put(keyOf(node.ino), node),
    find: (ino) => {
      const node = byKey(keyOf(ino));
      return node?.ino === ino ? node : undefined;
    },
    handleOf,
    byHandle: (buffer, from, end) => {
      if (end - from < 12) return undefined;
      const node = byKey(buffer.readUInt32BE(from + 4) * 0x1_0000_0000 + buffer.readUInt32BE(from + 8));
      // The handle equals one that this server created, so its MAC needs no check.
      return node !== undefined && equalsInConstantTime(handleOf(node), buffer, from, end) ? node : undefined;
    },
  };
}
