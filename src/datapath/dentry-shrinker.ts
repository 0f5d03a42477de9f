import { invalidateEntry } from '#wire/fuse/notify.ts';
import type { LockedDirectories } from './locked-directories.ts';
import type { Nodes } from './ports.ts';
import type { SeenNode } from './seen-nodes.ts';
import type { Server } from './server.ts';

export interface DentryShrinkerParts {
  readonly nodes: Pick<Nodes, 'get' | 'dataLoss' | 'isLossReported'>;
  readonly server: Pick<Server, 'leastRecentlySeen' | 'recordSeen' | 'forget'>;
  /** Sends a notification from another thread than the one that answers the kernel. */
  readonly notifyFromThread: (bytes: Buffer) => Promise<unknown>;
  /** Default: pending requests are unknown. */
  readonly lockedDirectories?: Pick<LockedDirectories, 'allows' | 'nextAnswer'>;
  /** Resolves when dentries may be dropped. Undefined: now. Changes wait for the same promise. */
  readonly ready?: () => Promise<void> | undefined;
}

/** How many nodes to scan per node to drop. */
const scansPerDrop = 4;
/** Nodes per batch. */
const batchSize = 16;

/**
 * Makes the kernel drop about `count` unused dentries, least recently seen first, so that it forgets their nodes.
 * Directories stay: a process may be in them, and dropping a directory's dentry detaches mounts on it.
 *
 * The kernel takes the directory's lock for this. If an application holds that lock while it waits for us, the
 * notifying thread blocks uninterruptibly, and a process killed meanwhile cannot exit (keeper/killed-process.ts). So
 * names are dropped one at a time, only in directories without pending requests, and not while the server is slow.
 */
export function createDentryShrinker(parts: DentryShrinkerParts): (count: number) => void {
  const { nodes, server, notifyFromThread, lockedDirectories, ready } = parts;
  let isRunning = false;
  let dropsLeft = 0;
  let scansLeft = 0;

  /** The node has an unreported data loss: the next open reports it, if the node still exists. */
  const hasUnreportedLoss = (id: number): boolean => nodes.dataLoss(id) !== undefined && !nodes.isLossReported(id);
  const isUnused = ({ id, isDirectory }: SeenNode): boolean =>
    !isDirectory && nodes.get(id)?.opens === 0 && !hasUnreportedLoss(id);

  /** Moves the node behind all others, so that they are tried first. The kernel's FORGET removes the node. */
  function moveToEnd({ id, parent, key }: SeenNode): void {
    if (nodes.get(id) === undefined) server.forget(id);
    else server.recordSeen(id, parent, key);
  }

  /** False: all candidates of this batch are in busy directories. */
  async function shrinkBatch(): Promise<boolean> {
    let requested = 0;
    let refused = 0;
    const oldest = server.leastRecentlySeen(batchSize);
    if (oldest.length === 0) dropsLeft = 0;
    for (const candidate of oldest) {
      if (dropsLeft === 0) break;
      moveToEnd(candidate);
      if (isUnused(candidate) && lockedDirectories?.allows(candidate.parent) === false) refused++;
      else if (--scansLeft < 0) dropsLeft = 0;
      else if (isUnused(candidate)) {
        requested++;
        dropsLeft--;
        await notifyFromThread(
          invalidateEntry(candidate.parent, Buffer.from(candidate.key, 'latin1'), { expireOnly: false }),
        );
      }
    }
    return requested > 0 || refused === 0;
  }

  async function shrinkAll(): Promise<void> {
    while (dropsLeft > 0) {
      await ready?.();
      if (!(await shrinkBatch())) await lockedDirectories?.nextAnswer();
    }
  }

  return (count) => {
    dropsLeft = count;
    scansLeft = count * scansPerDrop;
    if (isRunning) return;
    isRunning = true;
    // If the kernel rejects a notification, the next call tries other dentries.
    void shrinkAll()
      .catch(() => undefined)
      .finally(() => {
        isRunning = false;
      });
  };
}
