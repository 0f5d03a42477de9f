import { createHash, randomInt } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId } from '#core/model.ts';
import type { Attributes, Time } from '#wire/nfs3/index.ts';
import { isErrno, isFull } from '../shelf/files.ts';
import type { Others } from '../shelf/place.ts';
import type { NfsFiles } from './files.ts';

/** An empty record that is older than this, by the server's clock, was left by a host that died. */
const abandonedMs = 60_000;
/** A lock that has not changed for so long, while somebody watched, was left by a host that died. */
const deadLockMs = 120_000;
const lockPatienceMs = 15_000;
const lockPauseMs = 100;
const mostWatched = 10_000;

/** Times of last change that a file of ours has while nothing is written to it: the seconds tell the instance. */
export function createMarks(instance: string): { next(): Time; isOurs(found: Attributes): boolean } {
  const seconds = createHash('sha256').update(instance).digest().readUInt32BE(0) >>> 1;
  return {
    next: () => ({ seconds, nanoseconds: randomInt(1e9) }),
    isOurs: ({ mtime, size }) => mtime === seconds && size === 0,
  };
}

export interface OthersParts {
  readonly files: NfsFiles;
  readonly clock: Clock;
  readonly marks: ReturnType<typeof createMarks>;
  readonly store: string;
  /** `.stowage/locks` */
  readonly folder: string;
  scratch(): string;
}

/**
 * One host at a time changes a volume: it makes `.stowage/locks/<id>` exclusively, and removes it. What a host left that
 * died is found by watching it not change; no two clocks are compared.
 */
export function createOthers({ files, clock, marks, store, folder, scratch }: OthersParts): Others {
  /** By this process, at this moment. */
  const held = new Set<string>();
  const watched = new Map<string, { readonly seen: string; readonly since: number }>();

  async function now(): Promise<number> {
    const path = scratch();
    const told = await files.write(path, '.');
    const at = told === 0 ? ((await files.attributes(path))?.mtime ?? 0) * 1000 : told;
    await files.unlink(path);
    return at;
  }

  /** It was there when we looked, and has been as it is for too long. */
  function isDead(id: string, found: Attributes): boolean {
    const seen = `${found.fileId} ${found.ctime} ${found.ctimeNs}`;
    const before = watched.get(id);
    if (before?.seen === seen) return clock.elapsed() - before.since > deadLockMs;
    if (watched.size >= mostWatched) watched.clear();
    watched.set(id, { seen, since: clock.elapsed() });
    return false;
  }

  /** Moved away first, and looked at: of two who find it dead, the second would remove the first one's own. */
  async function clear(path: string, dead: Attributes): Promise<void> {
    const aside = scratch();
    if (!(await files.rename(path, aside))) return;
    if ((await files.attributes(aside))?.fileId === dead.fileId) await files.unlink(aside);
    else await files.rename(aside, path);
  }

  async function tryLock(id: string): Promise<boolean> {
    if (held.has(id)) return false;
    const path = `${folder}/${id}`;
    // Before the call: two of this process must not both find the lock to be an earlier one of ours.
    held.add(id);
    try {
      await files.create(path);
      return true;
    } catch (cause) {
      held.delete(id);
      // A full store must still be emptied; the risk is that of two hosts working on one volume at that moment.
      if (isFull(cause)) return true;
      if (!isErrno(cause, 'EEXIST')) throw cause;
    }
    const found = await files.attributes(path);
    if (found !== undefined && (marks.isOurs(found) || isDead(id, found))) await clear(path, found);
    return false;
  }

  async function lock(id: VolumeId, signal: AbortSignal): Promise<void> {
    const since = clock.elapsed();
    while (!(await tryLock(id))) {
      if (clock.elapsed() - since > lockPatienceMs) throw locked(id, store);
      await clock.sleep(lockPauseMs, signal);
    }
    watched.delete(id);
  }

  async function unlock(id: VolumeId): Promise<void> {
    if (!held.has(id)) return;
    // What is left behind is known as ours by its mark.
    await files.unlink(`${folder}/${id}`).catch(() => false);
    held.delete(id);
  }

  return {
    hold: async (ids, signal) => {
      await using stack = new AsyncDisposableStack();
      for (const id of [...new Set(ids)].sort()) {
        await lock(id, signal);
        stack.defer(() => unlock(id));
      }
      return stack.move();
    },
    take: (path) => files.create(path),
    isAbandoned: async (path) => {
      const found = await files.attributes(path);
      if (found === undefined || marks.isOurs(found)) return true;
      return (await now()) - (found.ctime * 1000 + Math.floor(found.ctimeNs / 1e6)) > abandonedMs;
    },
  };
}

function locked(id: string, store: string): StowageError {
  return new StowageError(`another Stowage is at work on volume ${id} in store ${store}`, {
    code: 'busy',
    reason: 'volume-locked-elsewhere',
    action: `Try again in a moment. A host that died while at work keeps the volume for at most ${deadLockMs / 60_000} more minutes.`,
  });
}
