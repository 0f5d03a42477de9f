import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { createSkippingClock } from '#testing/fakes/skipping-clock.ts';
import { attachImage } from '#testing/loop-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { attachedLoops, type Loop } from './attached-loops.ts';
import { isWrittenByNobody } from './image-lock.ts';
import { createLoopFiles } from './loop-files.ts';

let ground: ScratchFolder;
const at = (name: string): string => join(ground.folder, name);

beforeEach(() => {
  ground = createScratchFolder();
  onTestFinished(() => ground[Symbol.dispose]());
});

/** Attaches the image by another path, as a container would. */
function attachElsewhere(folder: string): void {
  mkdirSync(at('elsewhere'));
  execFileSync('mount', ['--bind', folder, at('elsewhere')]);
  const node = attachImage(at('elsewhere/v.img'));
  onTestFinished(() => void execFileSync('losetup', ['--detach', node]));
}

const loopsNamed = async (name: string): Promise<readonly Loop[]> =>
  (await attachedLoops()).filter(({ file }) => file === at(name));

describe.skipIf(needs('root', 'mount', 'loop'))('a loop device that does not answer', () => {
  async function asked(image: string): Promise<readonly Loop[]> {
    const clock = createSkippingClock();
    // The device does not answer, as if another program's request to it waited for a disk.
    const { loopsWith } = createLoopFiles(clock, () => {
      setImmediate(() => clock.skip(60_000));
      return new Promise(() => undefined);
    });
    return await loopsWith(image, await loopsNamed('elsewhere/v.img'));
  }

  test('may have the image while that is open for writing', async () => {
    const image = ground.image('v.img', 4);
    attachElsewhere(ground.folder);
    expect(await isWrittenByNobody(image)).toBe(false);
    await expect(asked(image)).rejects.toMatchObject({ code: 'unavailable', reason: 'loop-no-answer' });
  });

  test('has another file if no process has the image open for writing', async () => {
    const image = ground.image('v.img', 4);
    mkdirSync(at('other'));
    ground.image('other/v.img', 4);
    attachElsewhere(at('other'));
    expect(await isWrittenByNobody(image)).toBe(true);
    expect(await asked(image)).toEqual([]);
  });
});
