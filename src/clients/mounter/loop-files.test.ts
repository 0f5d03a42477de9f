import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { createSkippingClock } from '#testing/fakes/skipping-clock.ts';
import { attachImage } from '#testing/loop-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { type Loop, listAttachedLoops } from './attached-loops.ts';
import { hasNoWriter } from './image-lock.ts';
import { createLoopFiles } from './loop-files.ts';

let scratch: ScratchFolder;
const scratchPath = (name: string): string => join(scratch.folder, name);

beforeEach(() => {
  scratch = createScratchFolder();
  onTestFinished(() => scratch[Symbol.dispose]());
});

/** Attaches the image by another path, as a container would. */
function attachByOtherPath(folder: string): void {
  mkdirSync(scratchPath('elsewhere'));
  execFileSync('mount', ['--bind', folder, scratchPath('elsewhere')]);
  const node = attachImage(scratchPath('elsewhere/v.img'));
  onTestFinished(() => void execFileSync('losetup', ['--detach', node]));
}

const loopsNamed = async (name: string): Promise<readonly Loop[]> =>
  (await listAttachedLoops()).filter(({ file }) => file === scratchPath(name));

describe.skipIf(lacks('root', 'mount', 'loop'))('a loop device that does not answer', () => {
  async function findWithSilentDevice(image: string): Promise<readonly Loop[]> {
    const clock = createSkippingClock();
    // The device does not answer, as if another program's request to it waited for a disk.
    const { findLoops } = createLoopFiles(clock, () => {
      setImmediate(() => clock.skip(60_000));
      return new Promise(() => undefined);
    });
    return await findLoops(image, await loopsNamed('elsewhere/v.img'));
  }

  test('is assumed to have the image attached while the image is open for writing', async () => {
    const image = scratch.image('v.img', 4);
    attachByOtherPath(scratch.folder);
    expect(await hasNoWriter(image)).toBe(false);
    await expect(findWithSilentDevice(image)).rejects.toMatchObject({ code: 'unavailable', reason: 'loop-no-answer' });
  });

  test('is assumed to have another file if no process has the image open for writing', async () => {
    const image = scratch.image('v.img', 4);
    mkdirSync(scratchPath('other'));
    scratch.image('other/v.img', 4);
    attachByOtherPath(scratchPath('other'));
    expect(await hasNoWriter(image)).toBe(true);
    expect(await findWithSilentDevice(image)).toEqual([]);
  });
});
