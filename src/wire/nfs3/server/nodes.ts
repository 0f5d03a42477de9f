import type { Descriptor } from './descriptors.ts';
import { equalsInConstantTime, type HandleContents, type Handles, maxParentHashes, parentHash } from './handles.ts';
import type { ByteString } from './names.ts';

/** A file or directory that a client knows, or came by. */
export interface Node extends HandleContents {
  /** Where it was last seen; undefined: it is the root. */
  parent: Node | undefined;
  name: ByteString;
  /** Its last name was removed. */
  isGone: boolean;
  /** Its bytes as a string: a tenth of the memory of a Buffer, of which there would be one for each file. */
  handle: ByteString | undefined;
  /** A descriptor that names the directory (O_PATH). */
  directory: Descriptor | undefined;
  /** A descriptor for its data. */
  file: Descriptor | undefined;
  isWritable: boolean;
  /** The trail of what lies in it. */
  childParentHashes: Uint8Array | undefined;
  /** Which change of the tree was the last that was made to it through this server. */
  lastChange: number;
}

/** Those that were asked for lately, by inode number: about `limit` to twice as many. */
export interface Nodes {
  add(node: Node): void;
  find(ino: bigint): Node | undefined;
  handleOf(node: Node): ByteString;
  /** By a handle that a client gave: where it lies in what was received. */
  byHandle(buffer: Buffer, from: number, end: number): Node | undefined;
}

const noParentHashes = new Uint8Array(0);

function parentHashesBelow(parent: Node | undefined): Uint8Array {
  if (parent?.parent === undefined) return noParentHashes;
  parent.childParentHashes ??= withOwnHash(parent);
  return parent.childParentHashes;
}

function withOwnHash({ parentHashes: trail, ino }: Node): Uint8Array {
  if (trail.length >= maxParentHashes) return trail;
  const made = new Uint8Array(trail.length + 1);
  made.set(trail);
  made[trail.length] = parentHash(ino);
  return made;
}

export function createNode(ino: bigint, birth: bigint, parent: Node | undefined, name: ByteString): Node {
  return {
    ino,
    birth,
    parent,
    name,
    parentHashes: parentHashesBelow(parent),
    isGone: false,
    handle: undefined,
    directory: undefined,
    file: undefined,
    isWritable: false,
    childParentHashes: undefined,
    lastChange: 0,
  };
}

/** Two inode numbers may share a key, beyond 2^53: then one pushes the other out, and is found again by its trail. */
const keyOf = (ino: bigint): number => Number(ino);

export function createNodes(handles: Handles, limit: number): Nodes {
  // Two generations instead of a list in order of use, which would have to be changed with every call.
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
    node.handle ??= handles.make(node);
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
      // The whole of it is compared with one that we made ourselves: then it needs no check of its own.
      return node !== undefined && equalsInConstantTime(handleOf(node), buffer, from, end) ? node : undefined;
    },
  };
}
