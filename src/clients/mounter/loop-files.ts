import { open, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { foreign } from '#base/linux/libc.ts';
import type { Loop } from './loops.ts';
import { unlessMissing } from './paths.ts';

/**
 * The devices that have this very file behind them. Their paths do not tell: each is what it was for who attached it. Of a container that
 * has ended only the end of it is left, since what the path began with was mounted there; and in two containers the same path may be two
 * files. The name at its end is the same everywhere.
 */
export async function loopsWith(image: string, loops: readonly Loop[]): Promise<readonly Loop[]> {
  const named = loops.filter(({ file, deleted }) => !deleted && basename(file) === basename(image));
  if (named.length === 0) return [];
  const wanted = await unlessMissing(stat(image, { bigint: true }));
  const asked = named.map(async (loop) => {
    const found = await behind(loop);
    // One that cannot be asked, or a file that cannot be seen now: the path is all that is known.
    if (found === undefined || wanted === undefined) return loop.file === image;
    return found.device === wanted.dev && found.inode === wanted.ino;
  });
  const isIt = await Promise.all(asked);
  return named.filter((_, index) => isIt[index]);
}

const calls = foreign({ ioctl: 'int ioctl(int fd, unsigned long request, void *info)' });
/** linux/loop.h. */
const [getStatus64, infoBytes] = [0x4c05, 232];

/** A device that is set to autoclear has somebody who keeps it: it does not go because it was opened and closed here. */
async function behind({ node }: Loop): Promise<{ readonly device: bigint; readonly inode: bigint } | undefined> {
  const info = Buffer.alloc(infoBytes);
  try {
    await using device = await open(node, 'r');
    const { promise, resolve } = Promise.withResolvers<boolean>();
    calls().ioctl.async(device.fd, getStatus64, info, (failed: Error | null, result: number) =>
      resolve(failed === null && result === 0),
    );
    if (!(await promise)) return undefined;
  } catch {
    return undefined;
  }
  return { device: info.readBigUInt64LE(0), inode: info.readBigUInt64LE(8) };
}
