import { closeSync, constants, fdatasync, fsync, openSync } from 'node:fs';
import { isErrno } from '#base/errno.ts';
import type { Descriptor } from './descriptors.ts';
import { type ExportedTree, FileMoved } from './exported-tree.ts';
import type { Node } from './nodes.ts';
import { Refusal } from './refusal.ts';

/**
 * Syncs changes to the disk before the server replies. Concurrent calls for the same file or directory share one sync.
 * Syncs run in Node's threads, since a disk takes milliseconds.
 */
export interface Durability {
  /** Syncs the data of a file. Its descriptor stays open until then. */
  syncData(node: Node, descriptor: Descriptor): Promise<void>;
  /** Syncs the entries of directories, and the attributes of files and directories. */
  syncChanges(nodes: readonly Node[]): Promise<void>;
}

type Sync = (fd: number, done: (cause: Error | null) => void) => void;

export function createDurability(tree: ExportedTree): Durability {
  const { descriptors } = tree;
  const [dataSyncs, changeSyncs] = [createSyncCoalescer(), createSyncCoalescer()];

  async function syncHeld(descriptor: Descriptor, syncCall: Sync): Promise<void> {
    descriptor.users++;
    try {
      await sync(syncCall, descriptor.fd);
    } finally {
      descriptors.release(descriptor);
    }
  }

  async function syncNode(node: Node): Promise<void> {
    // Use the open descriptor of the data. If there is none, open one for the sync.
    if (node.file !== undefined) return await syncHeld(node.file, fsync);
    const fd = reopen(tree, node);
    if (fd === undefined) return;
    try {
      await sync(fsync, fd);
    } finally {
      closeSync(fd);
    }
  }

  return {
    syncData: (node, descriptor) => dataSyncs(node, () => syncHeld(descriptor, fdatasync)),
    syncChanges: async (nodes) => {
      await Promise.all(nodes.map((node) => changeSyncs(node, () => syncNode(node))));
    },
  };
}

export type CoalescedSync = (node: Node, run: () => Promise<void>) => Promise<void>;

export function createSyncCoalescer(): CoalescedSync {
  const runningSyncs = new Map<Node, Promise<void>>();
  const nextSyncs = new Map<Node, Promise<void>>();

  function begin(node: Node, run: () => Promise<void>): Promise<void> {
    const current = run().finally(() => {
      if (runningSyncs.get(node) === current) runningSyncs.delete(node);
    });
    runningSyncs.set(node, current);
    return current;
  }

  /**
   * A sync that is running may have started before the change. So the call waits for the next one, which it shares with all calls
   * that arrive before the next sync starts.
   */
  return (node, run) => {
    const current = runningSyncs.get(node);
    if (current === undefined) return begin(node, run);
    const known = nextSyncs.get(node);
    if (known !== undefined) return known;
    const next = current
      .catch(() => undefined)
      .then(() => {
        nextSyncs.delete(node);
        return begin(node, run);
      });
    nextSyncs.set(node, next);
    return next;
  };
}

/** Only files and directories can be opened for a sync; for other types the sync of the parent directory suffices. */
function reopen(tree: ExportedTree, node: Node): number | undefined {
  try {
    if (node.directory !== undefined) return openSync(node.directory.prefix, constants.O_RDONLY);
    return tree.withOpenPath(node, (path, stats) =>
      stats.isFile() || stats.isDirectory() ? openSync(path, constants.O_RDONLY) : undefined,
    );
  } catch (cause) {
    // Another process removed or moved it, or the mode denies access even to the owner. The kernel then writes it later.
    if (cause instanceof FileMoved || cause instanceof Refusal || isErrno(cause, 'EACCES')) return undefined;
    throw cause;
  }
}

async function sync(syncCall: Sync, fd: number): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  syncCall(fd, (cause) => (cause === null ? resolve() : reject(cause)));
  try {
    await promise;
  } catch (cause) {
    // File systems without a disk may not support fsync.
    if (!isErrno(cause, 'EINVAL')) throw cause;
  }
}
