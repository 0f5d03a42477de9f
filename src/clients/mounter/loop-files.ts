import { open, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { endsWithin } from '#base/wait.ts';
import { StowageError } from '#core/errors.ts';
import type { Loop } from './attached-loops.ts';
import { hasNoWriter } from './image-lock.ts';
import { type LoopFile, loopFile } from './loop-calls.ts';
import { makeNode } from './loop-devices.ts';
import { undefinedIfMissing } from './paths.ts';

/**
 * Finds the devices whose backing file is the image. Paths are not enough: each is the path that the attaching process saw. When a container
 * has ended, the mount at the beginning of its path is gone, and only the end of the path is left; in two containers the same path may be
 * two files. The last name is the same everywhere, so devices with another name are never queried.
 */
export type FindLoops = (image: string, loops: readonly Loop[]) => Promise<readonly Loop[]>;

export interface LoopFiles {
  readonly findLoops: FindLoops;
  /** Call it only for a device that can be ours. Undefined: it has no file, or did not answer within 5 s. */
  readonly backingFile: (loop: Loop) => Promise<LoopFile | undefined>;
}

/** Undefined: the query failed. */
type AttachedFile = LoopFile | 'not attached' | undefined;

interface PendingQuery {
  readonly answer: Promise<AttachedFile>;
  readonly startedAt: number;
}

/** For a file on a local disk the kernel answers from memory. */
const queryTimeoutMs = 5_000;

export function createLoopFiles(clock: Clock, queryDevice = queryLoopFile): LoopFiles {
  /** Each query occupies a thread until the kernel answers, so concurrent callers share one query per device. */
  const pending = new Map<string, PendingQuery>();

  async function queryOnce(loop: Loop): Promise<AttachedFile | 'silent'> {
    const key = `${loop.name} ${loop.sequence} ${loop.file}`;
    const query = pending.get(key) ?? { answer: queryDevice(loop), startedAt: clock.elapsed() };
    if (!pending.has(key)) {
      pending.set(key, query);
      void query.answer.finally(() => pending.delete(key));
    }
    const remainingMs = query.startedAt + queryTimeoutMs - clock.elapsed();
    return remainingMs > 0 && (await endsWithin(query.answer, remainingMs, clock)) ? await query.answer : 'silent';
  }

  /**
   * A device may not answer because the file system of its file is dead, or because another program's request to the device waits for a disk.
   * In both cases its file is unknown. If no process has the image open for writing, no device has it attached for writing. If in doubt, this
   * throws: attaching the image twice would destroy it.
   */
  async function requireUnattached(loop: Loop, image: string): Promise<void> {
    const writerCheck = hasNoWriter(image);
    if (loop.file === image || !(await endsWithin(writerCheck, queryTimeoutMs, clock)) || !(await writerCheck))
      throw loopUnresponsive(loop, image);
  }

  const findLoops: FindLoops = async (image, loops) => {
    const sameNameLoops = loops.filter(({ file, deleted }) => !deleted && basename(file) === basename(image));
    if (sameNameLoops.length === 0) return [];
    const imageStats = await undefinedIfMissing(stat(image, { bigint: true }));
    // The image is not visible now, so compare paths.
    if (imageStats === undefined) return sameNameLoops.filter(({ file }) => file === image);
    const matches = sameNameLoops.map(async (loop) => {
      const found = await queryOnce(loop);
      if (found === 'silent' || found === 'not attached') return found;
      if (found === undefined && loop.file !== image) throw loopUnresponsive(loop, image);
      if (found === undefined) return 'attached';
      return found.device === imageStats.dev && found.inode === imageStats.ino ? 'attached' : 'other';
    });
    const answers = await Promise.all(matches);
    const attached = sameNameLoops.filter((_, index) => answers[index] === 'attached');
    // Stowage attaches an image once and then keeps using that device, so the others need not answer.
    if (attached.length > 0) return attached;
    for (const loop of sameNameLoops.filter((_, index) => answers[index] === 'silent'))
      await requireUnattached(loop, image);
    return [];
  };

  return {
    findLoops,
    backingFile: async (loop) => {
      const answer = await queryOnce(loop);
      return typeof answer === 'object' ? answer : undefined;
    },
  };
}

/** A device with autoclear has a user, so opening and closing it here does not detach it. */
async function queryLoopFile({ name, node }: Loop): Promise<AttachedFile> {
  try {
    await makeNode(node, `/sys/block/${name}/dev`);
    await using device = await open(node, 'r');
    return await loopFile(device.fd);
  } catch (cause) {
    return isErrno(cause, 'ENXIO', 'ENODEV') ? 'not attached' : undefined;
  }
}

export function loopUnresponsive({ node, file }: Loop, image: string): StowageError {
  return new StowageError(`${node} may have ${image} attached, and its disk or server does not answer`, {
    code: 'unavailable',
    reason: 'loop-no-answer',
    action: `Restore the disk or server of ${file}, or detach the device (losetup --detach ${node}), then retry.`,
  });
}
