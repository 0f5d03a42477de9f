import { unlessAborted } from '#base/aborted.ts';
import type { Request } from '#wire/fuse/operations.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import { isSameHandle } from './file-handles.ts';
import type { Nodes } from './ports.ts';
import type { RequestWait } from './request-wait.ts';

/**
 * RELEASE requests in progress. close(2) does not wait for them: after closing a removed file, an application may list
 * or remove its directory while the file's hidden name is still there.
 */
export interface PendingReleases {
  /** Registers a release until it ends. */
  add(id: number, release: Promise<void>): void;
  /** Waits for hidden names in the directory that are about to be removed. Undefined: there are none. */
  waitForHiddenNames(directory: FileHandle, request: Request): Promise<void> | undefined;
}

export function createPendingReleases(nodes: Pick<Nodes, 'hiddenName'>, waitFor: RequestWait): PendingReleases {
  const releases = new Map<Promise<void>, number>();

  /** Check now, not at the start: a file may be removed while its release waits for writes. */
  const isHiddenIn = (id: number, directory: FileHandle): boolean => {
    const hidden = nodes.hiddenName(id);
    return hidden !== undefined && isSameHandle(hidden.directory, directory);
  };

  return {
    add: (id, release) => {
      const settled = release
        .catch(() => undefined)
        .finally(() => {
          releases.delete(settled);
        });
      releases.set(settled, id);
    },
    waitForHiddenNames: (directory, request) => {
      if (releases.size === 0) return undefined;
      const ends = [...releases].filter(([, id]) => isHiddenIn(id, directory)).map(([over]) => over);
      if (ends.length === 0) return undefined;
      // A failed release leaves its name, which is then never removed.
      return waitFor(request, (signal) => unlessAborted(Promise.all(ends), signal)).then(() => undefined);
    },
  };
}
