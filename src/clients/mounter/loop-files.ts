import { open, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { endsWithin } from '#base/patience.ts';
import { StowageError } from '#core/errors.ts';
import { loopFile } from './loop-calls.ts';
import { makeNode } from './loop-devices.ts';
import type { Loop } from './loops.ts';
import type { MountTable } from './mountinfo.ts';
import { isErrno, unlessMissing } from './paths.ts';

/**
 * The devices that have this very file behind them. Their paths do not tell: each is the path that the attaching process saw. When a
 * container has ended, the mount that the path began with is gone, and only the end of the path is left; in two containers the same path may
 * be two files. The name at the end is the same everywhere, so devices with another name are never asked.
 */
export type LoopsWith = (image: string, loops: readonly Loop[]) => Promise<readonly Loop[]>;

type File = Awaited<ReturnType<typeof loopFile>>;

/** Undefined: the device cannot be asked. */
type Answer = File | 'not attached' | undefined;

interface Question {
  readonly answer: Promise<Answer>;
  readonly since: number;
  /** The device could be opened. */
  readonly isOpen: boolean;
}

interface Silent {
  readonly silent: Question;
}

/** A question to a device on a local disk is answered from memory. */
const answerMs = 5_000;
/** File systems that a program or a server answers for. */
const remote = /^(?:fuse|nfs|cifs|smb|ceph|9p|virtiofs|afs|lustre|gfs|ocfs)/;

export function createLoopFiles(clock: Clock, readTable: () => Promise<MountTable>): LoopsWith {
  /** Each keeps a thread until the kernel answers, so a device is asked once, however often somebody wants to know. */
  const pending = new Map<string, Question>();

  async function fileOf(loop: Loop): Promise<Answer | Silent> {
    const key = `${loop.name} ${loop.file}`;
    const asked = pending.get(key) ?? ask(loop, clock.elapsed());
    if (!pending.has(key)) {
      pending.set(key, asked);
      void asked.answer.finally(() => pending.delete(key));
    }
    const left = asked.since + answerMs - clock.elapsed();
    return left > 0 && (await endsWithin(asked.answer, left, clock)) ? await asked.answer : { silent: asked };
  }

  /**
   * A device answers when the file system of its file does. If that one is another program's or server's, and the image's own file system
   * answers, the device has another file. To attach the image twice would destroy it, so in doubt this throws.
   */
  async function requireElsewhere(loop: Loop, image: string, { silent }: Silent): Promise<void> {
    const table = await readTable();
    const [theirs, own] = [table.holding(loop.file), table.holding(image)];
    const isRemote = theirs !== undefined && remote.test(theirs.type) && theirs.device !== own?.device;
    // The other's mount may be in another mount namespace. An open device on a local disk answers at once, from memory.
    const isOnDisk = own !== undefined && !remote.test(own.type) && silent.isOpen;
    const isOther = loop.file !== image && (isRemote || isOnDisk);
    if (!isOther || !(await endsWithin(stat(image), answerMs, clock))) throw cannotAsk(loop, image);
  }

  return async (image, loops) => {
    const named = loops.filter(({ file, deleted }) => !deleted && basename(file) === basename(image));
    if (named.length === 0) return [];
    const wanted = await unlessMissing(stat(image, { bigint: true }));
    const asked = named.map(async (loop) => {
      // The image is not to be seen now: the path is all that is known.
      if (wanted === undefined) return loop.file === image;
      const found = await fileOf(loop);
      if (typeof found === 'object' && 'silent' in found) {
        await requireElsewhere(loop, image, found);
        return false;
      }
      if (found === 'not attached') return false;
      if (found === undefined && loop.file !== image) throw cannotAsk(loop, image);
      if (found === undefined) return true;
      return found.device === wanted.dev && found.inode === wanted.ino;
    });
    const isIt = await Promise.all(asked);
    return named.filter((_, index) => isIt[index]);
  };
}

/** A device that is set to autoclear has a user: opening and closing it here does not detach it. */
function ask({ name, node }: Loop, since: number): Question {
  let isOpen = false;
  const asking = async (): Promise<Answer> => {
    try {
      await makeNode(node, `/sys/block/${name}/dev`);
      await using device = await open(node, 'r');
      isOpen = true;
      return await loopFile(device.fd);
    } catch (cause) {
      return isErrno(cause, 'ENXIO', 'ENODEV') ? 'not attached' : undefined;
    }
  };
  return {
    answer: asking(),
    since,
    get isOpen() {
      return isOpen;
    },
  };
}

export function cannotAsk({ node, file }: Loop, image: string): StowageError {
  return new StowageError(`${node} may have ${image} attached, and cannot be asked`, {
    code: 'unavailable',
    reason: 'loop-no-answer',
    action: `Bring back the disk or server that ${file} lies on, or detach the device (losetup --detach ${node}), then repeat.`,
  });
}
