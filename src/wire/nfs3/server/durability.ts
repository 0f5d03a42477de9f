import { closeSync, constants, fdatasync, fsync, openSync } from 'node:fs';
import { isErrno } from '#base/errno.ts';
import type { Descriptor } from './descriptors.ts';
import { type ExportedTree, FileMoved } from './exported-tree.ts';
import type { Node } from './nodes.ts';
import { Refusal } from './refusal.ts';

/**
 * Brings changes to the disk before they are answered. Whoever waits for the same file or directory shares one run of it:
 * of sixty-four calls at once, one pays. Through Node's threads, since a disk takes milliseconds.
 */
export interface Durability {
  /** What was written to a file. It is not closed before that. */
  data(node: Node, descriptor: Descriptor): Promise<void>;
  /** What was changed in a directory, or about a file or directory itself. */
  changes(nodes: readonly Node[]): Promise<void>;
}

type Sync = (fd: number, done: (cause: Error | null) => void) => void;

export function createDurability(tree: ExportedTree): Durability {
  const { descriptors } = tree;
  const [ofData, ofChanges] = [createSyncCoalescer(), createSyncCoalescer()];

  async function syncHeld(descriptor: Descriptor, how: Sync): Promise<void> {
    descriptor.users++;
    try {
      await sync(how, descriptor.fd);
    } finally {
      descriptors.release(descriptor);
    }
  }

  async function change(node: Node): Promise<void> {
    // Its data are open: that will do. Else a descriptor of its own, which is closed after.
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
    data: (node, descriptor) => ofData(node, () => syncHeld(descriptor, fdatasync)),
    changes: async (nodes) => {
      await Promise.all(nodes.map((node) => ofChanges(node, () => change(node))));
    },
  };
}

export type CoalescedSync = (node: Node, run: () => Promise<void>) => Promise<void>;

export function createSyncCoalescer(): CoalescedSync {
  const running = new Map<Node, Promise<void>>();
  const following = new Map<Node, Promise<void>>();

  function begin(node: Node, run: () => Promise<void>): Promise<void> {
    const current = run().finally(() => {
      if (running.get(node) === current) running.delete(node);
    });
    running.set(node, current);
    return current;
  }

  /** One that runs may have begun before the change: then the next one counts, for all who come until it begins. */
  return (node, run) => {
    const current = running.get(node);
    if (current === undefined) return begin(node, run);
    const known = following.get(node);
    if (known !== undefined) return known;
    const next = current
      .catch(() => undefined)
      .then(() => {
        following.delete(node);
        return begin(node, run);
      });
    following.set(node, next);
    return next;
  };
}

/** Only files and directories can be opened to be synced; of what else there is, the directory's own sync takes care. */
function reopen(tree: ExportedTree, node: Node): number | undefined {
  try {
    if (node.directory !== undefined) return openSync(node.directory.prefix, constants.O_RDONLY);
    return tree.withOpenPath(node, (path, stats) =>
      stats.isFile() || stats.isDirectory() ? openSync(path, constants.O_RDONLY) : undefined,
    );
  } catch (cause) {
    // Removed or moved meanwhile by others; or a mode that keeps even the owner out: the system writes it in its own time.
    if (cause instanceof FileMoved || cause instanceof Refusal || isErrno(cause, 'EACCES')) return undefined;
    throw cause;
  }
}

async function sync(how: Sync, fd: number): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  how(fd, (cause) => (cause === null ? resolve() : reject(cause)));
  try {
    await promise;
  } catch (cause) {
    // Some file systems cannot; they have no disk either.
    if (!isErrno(cause, 'EINVAL')) throw cause;
  }
}
