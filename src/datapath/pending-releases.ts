import type { Request } from '#wire/fuse/operations.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { Nodes } from './ports.ts';
import type { RequestWait } from './request-wait.ts';
import { isSame } from './server.ts';
import { unlessAborted } from './unless-aborted.ts';

/**
 * Ends of open files that are under way. close(2) does not wait for them: whoever has closed a file that was removed lists its
 * directory, or removes it, while the hidden name of the file is still there.
 */
export interface PendingReleases {
  /** The file's, from now until it is over. */
  add(id: number, end: Promise<void>): void;
  /** Waits for the hidden names in a directory that are about to go; undefined: there are none. */
  waitForHidden(directory: FileHandle, request: Request): Promise<void> | undefined;
}

export function createPendingReleases(nodes: Pick<Nodes, 'hidden'>, waitFor: RequestWait): PendingReleases {
  const underWay = new Map<Promise<void>, number>();

  /** Now, not when it began: a file may be removed while the end of it waits for what was written. */
  const isHiddenIn = (id: number, directory: FileHandle): boolean => {
    const hidden = nodes.hidden(id);
    return hidden !== undefined && isSame(hidden.directory, directory);
  };

  return {
    add: (id, end) => {
      const over = end
        .catch(() => undefined)
        .finally(() => {
          underWay.delete(over);
        });
      underWay.set(over, id);
    },
    waitForHidden: (directory, request) => {
      if (underWay.size === 0) return undefined;
      const ends = [...underWay].filter(([, id]) => isHiddenIn(id, directory)).map(([over]) => over);
      if (ends.length === 0) return undefined;
      // One that failed has left its name, and nobody will come for it.
      return waitFor(request, (signal) => unlessAborted(Promise.all(ends), signal)).then(() => undefined);
    },
  };
}
