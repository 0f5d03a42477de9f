import { execFile } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { mountImage } from '#testing/loop-mount.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { maxFileCalls, maxShortCalls } from './slots-by-device.ts';

const run = promisify(execFile);
const program = fileURLToPath(new URL('../../testing/hung-disk.ts', import.meta.url));

describe.skipIf(lacks('linux', 'root', 'mount', 'loop', 'ext4'))('a disk that does not answer', () => {
  test('blocks a limited number of threads, and only the names of the blocked calls', { timeout: 60_000 }, async () => {
    const ground = createScratchFolder();
    onTestFinished(() => ground[Symbol.dispose]());
    const disk = join(ground.folder, 'disk');
    await mkdir(disk);
    mountImage(ground.image('image', 64, 'ext4'), disk);
    // Fails if the disk is already thawed. Registered first, because a process that waits for a frozen disk cannot be killed.
    const thaw = () => run('fsfreeze', ['--unfreeze', disk]).catch(() => undefined);
    onTestFinished(async () => void (await thaw()));
    // Plus one thread for each of the two stores that are being opened there, and one for everything else.
    const threads = `${maxFileCalls + 3}`;
    const child = run(
      process.execPath,
      ['--disable-warning=ExperimentalWarning', program, disk, join(ground.folder, 'fine')],
      {
        env: { ...process.env, UV_THREADPOOL_SIZE: threads },
      },
    );
    const thawTimer = setTimeout(() => void thaw(), 30_000);
    const { stdout } = await child.finally(() => clearTimeout(thawTimer));
    const { whileFrozen, afterwards } = JSON.parse(stdout);
    expect(whileFrozen).toEqual({
      namesBesideReclaim: 'done',
      besides: Array(5).fill('done'),
      // Pending calls are undefined, which JSON leaves out. The opens are pending too, as null.
      opens: [null, null],
      stuck: maxShortCalls,
      gaveUp: 50 - maxShortCalls,
      repeated: 'deadline',
      sameName: 'deadline',
      check: 'deadline',
    });
    expect(afterwards).toEqual({ reclaim: 'done', opens: ['done', 'done'], sameName: 'done', orphans: 0 });
  });
});
