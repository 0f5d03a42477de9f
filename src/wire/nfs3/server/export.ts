import { XdrError, type XdrReader } from '../../xdr/reader.ts';
import { maxHandle } from '../structures.ts';
import type { ToAttributes } from './attributes.ts';
import { checkReach } from './confinement.ts';
import type { Durability } from './durability.ts';
import type { ExportedTree } from './exported-tree.ts';
import type { FileSearch } from './file-search.ts';
import type { Handles } from './handles.ts';
import type { Identities } from './identities.ts';
import type { Listings } from './listing.ts';
import { createNode, type Node, type Nodes } from './nodes.ts';
import type { ReaddirCache } from './readdir-cache.ts';
import { refuse } from './refusal.ts';

/** What all procedures work on. */
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
  /** Changes of names and attributes are on the disk before they are answered. */
  readonly isDurable: boolean;
  readonly isReadOnly: boolean;
  /** Whether this is the export as confined callers see it: see confinement.ts. */
  readonly isConfined: boolean;
  /** RFC 1813, section 3.3.7: another one tells clients that what they did not commit may be lost. */
  readonly verifier: { readonly bytes: Buffer; renew(): void };
  /** Tells the cookies of this server from those of another that has its place. */
  readonly cookieVerifier: bigint;
  readonly onError: (what: string, cause: unknown) => void;
}

/** The file that a call is about, if the caller may reach it. */
export function readNode(exported: Export, reader: XdrReader): Node {
  const node = readNodeByHandle(exported, reader);
  if (exported.isConfined) checkReach(node, exported.tree.root);
  return node;
}

/** One that was seen before costs no more than to compare its handle. */
function readNodeByHandle({ nodes, handles, tree }: Export, reader: XdrReader): Node {
  const length = reader.u32();
  if (length > maxHandle) throw new XdrError(`a handle of ${length} bytes`);
  const from = reader.take((length + 3) & ~3);
  const known = nodes.byHandle(reader.buffer, from, from + length);
  if (known !== undefined) return known;
  const origin = handles.open(reader.buffer.subarray(from, from + length));
  if (origin === undefined) return refuse('BADHANDLE');
  const { root } = tree;
  if (origin.ino === root.ino && origin.birth === root.birth) {
    nodes.add(root);
    return root;
  }
  const present = nodes.find(origin.ino);
  // The same file by another handle, from before it was moved.
  if (present !== undefined && present.birth === origin.birth) return present;
  // Another file has its number now: then it is gone, unless that one is gone, too.
  if (present !== undefined && !present.isGone && tree.stat(present).nlink > 0n) refuse('STALE');
  const node = { ...createNode(origin.ino, origin.birth, undefined, ''), trail: origin.parentHashes };
  nodes.add(node);
  return node;
}

export function requireWritable({ isReadOnly }: Export): void {
  if (isReadOnly) refuse('ROFS');
}
