import { XdrError, type XdrReader } from '../../xdr/reader.ts';
import { maxHandleBytes } from '../structures.ts';
import type { ToAttributes } from './attributes.ts';
import { requireReachable } from './confinement.ts';
import type { Durability } from './durability.ts';
import type { ExportedTree } from './exported-tree.ts';
import type { FileSearch } from './file-search.ts';
import type { Handles } from './handles.ts';
import type { Identities } from './identities.ts';
import type { Listings } from './listing.ts';
import { createNode, type Node, type Nodes } from './nodes.ts';
import type { ReaddirCache } from './readdir-cache.ts';
import { refuse } from './refusal.ts';

/** The state that all procedures share. */
export interface Export {
  readonly tree: ExportedTree;
  readonly nodes: Nodes;
  readonly handles: Handles;
  readonly search: FileSearch;
  readonly identities: Identities;
  readonly toAttributes: ToAttributes;
  readonly listings: Listings;
  readonly readdirCache: ReaddirCache;
  readonly durability: Durability;
  /** Whether changes of names and attributes are synced to the disk before the reply. */
  readonly isDurable: boolean;
  readonly isReadOnly: boolean;
  /** Whether this is the view of confined callers: see confinement.ts. */
  readonly isConfined: boolean;
  /** RFC 1813, section 3.3.7: a new write verifier tells clients that uncommitted data may be lost. */
  readonly verifier: { readonly bytes: Buffer; renew(): void };
  /** The cookie verifier distinguishes this server's cookies from those of a server that replaced it. */
  readonly cookieVerifier: bigint;
  readonly onError: (what: string, cause: unknown) => void;
}

/** Reads the handle of a call and returns its file, if the caller may access it. */
export function readNode(exported: Export, reader: XdrReader): Node {
  const node = readNodeByHandle(exported, reader);
  if (exported.isConfined) requireReachable(node, exported.tree.root);
  return node;
}

/** For a known file, only the handle bytes are compared. */
function readNodeByHandle({ nodes, handles, tree }: Export, reader: XdrReader): Node {
  const length = reader.u32();
  if (length > maxHandleBytes) throw new XdrError(`a handle of ${length} bytes`);
  const from = reader.skipBytes((length + 3) & ~3);
  const known = nodes.byHandle(reader.buffer, from, from + length);
  if (known !== undefined) return known;
  const contents = handles.open(reader.buffer.subarray(from, from + length));
  if (contents === undefined) return refuse('BADHANDLE');
  const { root } = tree;
  if (contents.ino === root.ino && contents.birth === root.birth) {
    nodes.add(root);
    return root;
  }
  const existing = nodes.find(contents.ino);
  // The same file under an older handle, from before it was moved.
  if (existing !== undefined && existing.birth === contents.birth) return existing;
  // Another file has this inode number now, so the handle is stale, unless that file is deleted, too.
  if (existing !== undefined && !existing.isDeleted && tree.stat(existing).nlink > 0n) refuse('STALE');
  const node = { ...createNode(contents.ino, contents.birth, undefined, ''), trail: contents.parentHashes };
  nodes.add(node);
  return node;
}

export function requireWritable({ isReadOnly }: Export): void {
  if (isReadOnly) refuse('ROFS');
}
