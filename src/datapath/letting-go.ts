import { invalidateEntry } from '#wire/fuse/notify.ts';
import type { Nodes } from './ports.ts';
import type { Server } from './server.ts';

export interface LettingGoParts {
  readonly nodes: Pick<Nodes, 'get'>;
  readonly server: Pick<Server, 'oldest' | 'seen' | 'forget'>;
  /** Tells the kernel something by another thread than the one that answers it. */
  readonly notifyApart: (bytes: Buffer) => Promise<unknown>;
}

/** Of those that were looked at so many times more are looked through. */
const lookThrough = 4;

/**
 * Makes the kernel let go of about so many names that nobody uses, those seen longest ago first: it then forgets their nodes.
 * Directories stay: somebody may be in them, and with its name a directory loses whatever is mounted on it.
 */
export function createLettingGo({ nodes, server, notifyApart }: LettingGoParts): (count: number) => void {
  let isUnderWay = false;
  /** Asked for meanwhile. */
  let wanted = 0;

  async function letGo(count: number): Promise<void> {
    let left = count;
    for (const { id, parent, key, isDirectory } of server.oldest(count * lookThrough)) {
      if (left === 0) return;
      const node = nodes.get(id);
      if (node === undefined) continue;
      // Not again before the others. It is gone when the kernel says so.
      server.seen(id, parent, key);
      if (isDirectory || node.opens > 0) continue;
      left--;
      await notifyApart(invalidateEntry(parent, Buffer.from(key, 'latin1'), { expireOnly: false }));
    }
  }

  async function letGoAll(): Promise<void> {
    isUnderWay = true;
    while (wanted > 0) {
      const count = wanted;
      wanted = 0;
      // Where the kernel does not want to hear of one, it is asked for others when there are more.
      await letGo(count).catch(() => undefined);
    }
    isUnderWay = false;
  }

  return (count) => {
    wanted = count;
    if (!isUnderWay) void letGoAll();
  };
}
