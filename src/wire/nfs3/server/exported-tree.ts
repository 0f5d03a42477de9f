import { type BigIntStats, closeSync, constants, fstatSync, lstatSync, openSync } from 'node:fs';
import { isErrno } from '#base/errno.ts';
import { createDescriptors, type Descriptor, type Descriptors } from './descriptors.ts';
import { type ByteString, toPath } from './names.ts';
import { createNode, type Node, type Nodes } from './nodes.ts';
import { refuse } from './refusal.ts';

/** O_PATH, which Node does not define: refers to an inode without opening it, so no device is touched and no FIFO blocks. */
const oPath = 0o10000000;
const openDirectoryFlags = oPath | constants.O_DIRECTORY | constants.O_NOFOLLOW;
const openObjectFlags = oPath | constants.O_NOFOLLOW;
/** Deeper than any path that the kernel accepts. Stops at cycles of parents, which moves by other programs can cause. */
export const maxDepth = 2048;

const bigintStats = { bigint: true } as const;
const statOptions = { bigint: true, throwIfNoEntry: false } as const;

/** A file is no longer at its known path; it may be elsewhere. */
export class FileMoved extends Error {
  override readonly name = 'Lost';
  readonly node: Node;
  constructor(node: Node) {
    super('the file is no longer at its known path');
    this.node = node;
  }
}

/**
 * The exported directory. Each step goes from an open directory to one name in it and never follows a link, so nothing that
 * a client creates, moves or swaps can lead outside. Calls are synchronous: a call takes a few microseconds, and ten times
 * as long in Node's threads. The server has its own process.
 */
export interface ExportedTree {
  readonly root: Node;
  /** Throws FileMoved, or refuses a deleted file with STALE. */
  stat(node: Node): BigIntStats;
  /** Opens a directory. */
  openDirectory(node: Node): Descriptor;
  statDirectory(node: Node): BigIntStats;
  /** The path of a name for a system call that changes the directory. */
  pathForChange(directory: Node, name: ByteString): string | Buffer;
  /** Undefined: the name does not exist. */
  lookup(directory: Node, name: ByteString): BigIntStats | undefined;
  /** For lookups of many names in one directory. `use` must do nothing else. */
  withLookup<T>(directory: Node, use: (lookup: (name: ByteString) => BigIntStats | undefined) => T): T;
  /** Returns the node of what was found under a name. */
  nodeFor(directory: Node, name: ByteString, stats: BigIntStats): Node;
  /** Opens the data of a regular file. */
  openData(node: Node, forWriting: boolean): Descriptor;
  /** Keeps the descriptor that a new file was created with. */
  keepData(node: Node, fd: number): void;
  /** Opens the object with O_PATH, so that the following system calls act on this object and no other. */
  withOpenPath<T>(node: Node, use: (path: string, stats: BigIntStats) => T): T;
  /** Notes a change of the object or its entries that none of the other methods notes. */
  noteChange(node: Node): void;
  /** The number of changes so far. */
  readonly changeCount: number;
  /** Notes that a name was removed; if it was the last link, the file is gone. */
  noteRemoval(stats: BigIntStats): void;
  /** Closes kept descriptors, so that objects that others moved away or deleted become unreachable. */
  refresh(): void;
  readonly descriptors: Descriptors;
  close(): void;
}

export function isSameFile(stats: BigIntStats, node: Pick<Node, 'ino' | 'birth'>): boolean {
  return stats.ino === node.ino && stats.birthtimeNs === node.birth;
}

export interface ExportedTreeOptions {
  readonly path: string;
  readonly maxDescriptors: number;
  /** Nothing else runs in this process, so its working directory may be changed for a moment. */
  readonly ownsProcess: boolean;
}

export function createExportedTree(
  { path, maxDescriptors, ownsProcess }: ExportedTreeOptions,
  nodes: Nodes,
): ExportedTree {
  const rootFd = openSync(path, oPath | constants.O_DIRECTORY);
  const rootStats = fstatSync(rootFd, bigintStats);
  const { dev } = rootStats;
  const root = createNode(rootStats.ino, rootStats.birthtimeNs, undefined, '');
  nodes.add(root);
  const descriptors = createDescriptors(maxDescriptors);
  let changeCount = 0;
  root.directory = { fd: rootFd, prefix: `/proc/self/fd/${rootFd}/`, users: 1 };

  function noteChange(node: Node): void {
    node.lastChange = ++changeCount;
  }

  /** Other file systems mounted below the export are not part of it: their inode numbers would be confused with its own. */
  function lstatName(prefix: string, name: ByteString): BigIntStats | undefined {
    const stats = lstatSync(toPath(prefix + name), statOptions);
    return stats === undefined || stats.dev !== dev ? undefined : stats;
  }

  /** A lookup of a bare name costs less than half of a lookup through a /proc path. */
  function withLookup<T>(parent: Node, use: (look: (name: ByteString) => BigIntStats | undefined) => T): T {
    const { prefix } = openDirectory(parent);
    if (!ownsProcess || !tryChdir(prefix)) return use((name) => lstatName(prefix, name));
    try {
      return use((name) => lstatName('', name));
    } finally {
      process.chdir('/');
    }
  }

  function tryOpenDirectory(directory: Node, depth: number): Descriptor | undefined {
    const { parent } = directory;
    if (directory.directory !== undefined) {
      if (parent !== undefined) descriptors.markUsed(directory.directory);
      return directory.directory;
    }
    const parentDescriptor = parent === undefined || depth > maxDepth ? undefined : tryOpenDirectory(parent, depth + 1);
    const fd = parentDescriptor && openIfExists(toPath(parentDescriptor.prefix + directory.name), openDirectoryFlags);
    if (fd === undefined) return undefined;
    const stats = fstatSync(fd, bigintStats);
    if (!isSameFile(stats, directory) || stats.dev !== dev) {
      closeSync(fd);
      return undefined;
    }
    directory.directory = descriptors.add(fd, () => {
      directory.directory = undefined;
    });
    return directory.directory;
  }

  function openDirectory(node: Node): Descriptor {
    if (node.isDeleted) refuse('STALE');
    const held = tryOpenDirectory(node, 0);
    if (held !== undefined) return held;
    const stats = stat(node);
    if (!stats.isDirectory()) refuse('NOTDIR');
    throw new FileMoved(node);
  }

  /** Returns the stats of an open file. Its last link may have been removed. */
  function statOpen(node: Node, held: Descriptor): BigIntStats {
    const stats = fstatSync(held.fd, bigintStats);
    if (stats.nlink > 0n) return stats;
    markGone(node);
    return refuse('STALE');
  }

  function stat(node: Node): BigIntStats {
    if (node.isDeleted) refuse('STALE');
    const held = node.file ?? node.directory;
    if (held !== undefined) return statOpen(node, held);
    const above = node.parent && tryOpenDirectory(node.parent, 0);
    const stats = above && lstatName(above.prefix, node.name);
    if (stats === undefined || !isSameFile(stats, node)) throw new FileMoved(node);
    return stats;
  }

  function markGone(node: Node): void {
    node.isDeleted = true;
    if (node.file !== undefined) descriptors.drop(node.file);
    if (node.directory !== undefined && node !== root) descriptors.drop(node.directory);
  }

  function withOpenPath<T>(node: Node, use: (path: string, stats: BigIntStats) => T): T {
    if (node.isDeleted) refuse('STALE');
    noteChange(node);
    if (node === root) return use(`/proc/self/fd/${rootFd}`, fstatSync(rootFd, bigintStats));
    const above = node.parent && tryOpenDirectory(node.parent, 0);
    const fd = above && openIfExists(toPath(above.prefix + node.name), openObjectFlags);
    if (fd === undefined) throw new FileMoved(node);
    try {
      const stats = fstatSync(fd, bigintStats);
      if (!isSameFile(stats, node) || stats.dev !== dev) throw new FileMoved(node);
      return use(`/proc/self/fd/${fd}`, stats);
    } finally {
      closeSync(fd);
    }
  }

  function keepData(node: Node, fd: number, isWritable: boolean): Descriptor {
    if (node.file !== undefined) descriptors.drop(node.file);
    node.isWritable = isWritable;
    node.file = descriptors.add(fd, () => {
      node.file = undefined;
    });
    return node.file;
  }

  function openData(node: Node, forWriting: boolean): Descriptor {
    if (forWriting) noteChange(node);
    if (node.file !== undefined && (node.isWritable || !forWriting)) {
      descriptors.markUsed(node.file);
      return node.file;
    }
    // Open it through the O_PATH descriptor, so that it is the checked object: a regular file.
    const fd = withOpenPath(node, (own, stats) => {
      if (stats.isDirectory()) refuse('ISDIR');
      if (!stats.isFile()) refuse('INVAL');
      return openSync(own, forWriting ? constants.O_RDWR : constants.O_RDONLY);
    });
    return keepData(node, fd, forWriting);
  }

  return {
    root,
    stat,
    openDirectory: openDirectory,
    statDirectory: (node) => statOpen(node, openDirectory(node)),
    pathForChange: (parent, name) => {
      noteChange(parent);
      return toPath(openDirectory(parent).prefix + name);
    },
    lookup: (parent, name) => lstatName(openDirectory(parent).prefix, name),
    withLookup,
    nodeFor: (parent, name, stats) => {
      const known = nodes.find(stats.ino);
      if (known !== undefined && known.birth === stats.birthtimeNs) {
        known.isDeleted = false;
        if (known === root) return root;
        known.parent = parent;
        known.name = name;
        return known;
      }
      const node = createNode(stats.ino, stats.birthtimeNs, parent, name);
      nodes.add(node);
      return node;
    },
    openData: openData,
    keepData: (node, fd) => void keepData(node, fd, true),
    withOpenPath,
    noteChange,
    get changeCount() {
      return changeCount;
    },
    noteRemoval: (stats) => {
      const node = nodes.find(stats.ino);
      if (node === undefined || !isSameFile(stats, node)) return;
      noteChange(node);
      if (stats.isDirectory() || stats.nlink <= 1n) markGone(node);
      // If another link exists, only a search can find it. Until then the descriptor stays open.
    },
    refresh: () => descriptors.closeAll(),
    descriptors,
    close: () => {
      // Calls in flight must not use a descriptor number that may have been reused.
      root.isDeleted = true;
      root.directory = undefined;
      descriptors.closeAll();
      closeSync(rootFd);
    },
  };
}

function tryChdir(path: string): boolean {
  try {
    process.chdir(path);
    return true;
  } catch {
    return false;
  }
}

function openIfExists(path: string | Buffer, flags: number): number | undefined {
  try {
    return openSync(path, flags);
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ENOTDIR', 'ELOOP')) return undefined;
    throw cause;
  }
}
