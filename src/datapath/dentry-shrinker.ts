import { invalidateEntry } from '#wire/fuse/notify.ts';
import type { LockedDirectories } from './locked-directories.ts';
import type { Nodes } from './ports.ts';
import type { SeenNode, Server } from './server.ts';

export interface DentryShrinkerParts {
  readonly nodes: Pick<Nodes, 'get' | 'lost' | 'isLossTold'>;
  readonly server: Pick<Server, 'oldest' | 'seen' | 'forget'>;
  /** Tells the kernel something by another thread than the one that answers it. */
  readonly notifyApart: (bytes: Buffer) => Promise<unknown>;
  /** Left out: nothing is known of what waits for us. */
  readonly lockedDirectories?: Pick<LockedDirectories, 'allows' | 'ended'>;
  /** Something to be waited for before anything is asked: changes wait for it, too. */
  readonly ready?: () => Promise<void> | undefined;
}

/** Of those that were looked at so many times more are looked through. */
const scanFactor = 4;
/** Looked at in one turn. */
const batchSize = 16;

/**
 * Makes the kernel let go of about so many names that nobody uses, those seen longest ago first: it then forgets their nodes.
 * Directories stay: somebody may be in them, and with its name a directory loses whatever is mounted on it.
 *
 * The kernel takes the lock of the directory for it, and waits where somebody has it who waits for us, by a thread that cannot be
 * interrupted: a process that is killed meanwhile cannot end (keeper/killed-process.ts). So it is asked for one name at a time, in
 * directories in which nothing is outstanding, and not while the server is slow.
 */
export function createDentryShrinker(parts: DentryShrinkerParts): (count: number) => void {
  const { nodes, server, notifyApart, lockedDirectories, ready } = parts;
  let isRunning = false;
  let wanted = 0;
  let scansLeft = 0;

  /** Data of it got lost, and nobody knows: whoever opens it next is told, if it is still the same node. */
  const hasUnreportedLoss = (id: number): boolean => nodes.lost(id) !== undefined && !nodes.isLossTold(id);
  const isUnused = ({ id, isDirectory }: SeenNode): boolean =>
    !isDirectory && nodes.get(id)?.opens === 0 && !hasUnreportedLoss(id);

  /** Not again before the others. It is gone when the kernel says so. */
  function moveToEnd({ id, parent, key }: SeenNode): void {
    if (nodes.get(id) === undefined) server.forget(id);
    else server.seen(id, parent, key);
  }

  /** False: of the next few all that could be let go are where something is going on. */
  async function shrinkBatch(): Promise<boolean> {
    let asked = 0;
    let refused = 0;
    const oldest = server.oldest(batchSize);
    if (oldest.length === 0) wanted = 0;
    for (const placed of oldest) {
      if (wanted === 0) break;
      moveToEnd(placed);
      if (isUnused(placed) && lockedDirectories?.allows(placed.parent) === false) refused++;
      else if (--scansLeft < 0) wanted = 0;
      else if (isUnused(placed)) {
        asked++;
        wanted--;
        await notifyApart(invalidateEntry(placed.parent, Buffer.from(placed.key, 'latin1'), { expireOnly: false }));
      }
    }
    return asked > 0 || refused === 0;
  }

  async function shrinkAll(): Promise<void> {
    while (wanted > 0) {
      await ready?.();
      if (!(await shrinkBatch())) await lockedDirectories?.ended();
    }
  }

  return (count) => {
    wanted = count;
    scansLeft = count * scanFactor;
    if (isRunning) return;
    isRunning = true;
    // Where the kernel does not want to hear of one, it is asked for others when there are more.
    void shrinkAll()
      .catch(() => undefined)
      .finally(() => {
        isRunning = false;
      });
  };
}
