import { readdir, readFile } from 'node:fs/promises';
import type { MountEntry, MountTable } from './mountinfo.ts';

/** A loop device with a file behind it. */
export interface Loop {
  /** `loop3`. */
  readonly name: string;
  /** `/dev/loop3`. */
  readonly node: string;
  /** `7:3`, as the mount table has it. */
  readonly device: string;
  /** The path as the attaching process saw it. To find the file: loop-files.ts. */
  readonly file: string;
  /** The file was unlinked; another one may have its name by now. */
  readonly deleted: boolean;
  readonly bytes: number;
  readonly readOnly: boolean;
  /** The kernel detaches it with its last user. */
  readonly autoclear: boolean;
  /** Changes each time a file is attached to the device. Undefined: the kernel is older than 5.15. */
  readonly sequence: string | undefined;
  /** Another block device is stacked on it. */
  readonly stacked: boolean;
}

const deletedSuffix = ' (deleted)';

/** Reads sysfs only, which opens no device: closing a device with autoclear would detach it. */
export async function listAttachedLoops(sys = '/sys/block'): Promise<readonly Loop[]> {
  const names = (await readdir(sys).catch(() => [])).filter((name) => /^loop\d+$/.test(name));
  const loops = await Promise.all(names.map((name) => readLoop(sys, name)));
  return loops.filter((loop) => loop !== undefined);
}

async function readLoop(sys: string, name: string): Promise<Loop | undefined> {
  const readAttribute = async (file: string): Promise<string> =>
    (await readFile(`${sys}/${name}/${file}`, 'utf8')).replace(/\n$/, '');
  try {
    const backing = await readAttribute('loop/backing_file');
    const deleted = backing.endsWith(deletedSuffix);
    return {
      name,
      node: `/dev/${name}`,
      device: await readAttribute('dev'),
      file: deleted ? backing.slice(0, -deletedSuffix.length) : backing,
      deleted,
      bytes: Number(await readAttribute('size')) * 512,
      readOnly: (await readAttribute('ro')) === '1',
      autoclear: (await readAttribute('loop/autoclear')) === '1',
      sequence: await readAttribute('diskseq').catch(() => undefined),
      stacked: (await readdir(`${sys}/${name}/holders`)).length > 0,
    };
  } catch {
    // Not attached, or detached while it was read.
    return undefined;
  }
}

/** Whether both loops are the same attachment; the file may have been renamed in between. Kernels before 5.15 identify an attachment by its file only. */
export const isSameAttachment = (one: Loop, other: Loop): boolean =>
  one.name === other.name && (other.sequence === undefined ? one.file === other.file : one.sequence === other.sequence);

/** Whether the entry is a bind mount of the device's node. /dev is a devtmpfs, in a container a tmpfs. */
export function isBindOfNode(loop: Loop, entry: MountEntry): boolean {
  return ['devtmpfs', 'tmpfs'].includes(entry.type) && entry.root === `/${loop.name}`;
}

/** The mounts of the device's file system and of its node. */
export function loopMounts(loop: Loop, table: MountTable): readonly MountEntry[] {
  return table.entries.filter((entry) => entry.device === loop.device || isBindOfNode(loop, entry));
}
