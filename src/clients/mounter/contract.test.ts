import { execFileSync } from 'node:child_process';
import { closeSync, mkdirSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { describe } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { mounterContract, unableMounterContract } from '#testing/contracts/mounter.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { createRunProgram } from './run-program.ts';
import { createUnableMounter } from './unable-mounter.ts';

describe.skipIf(lacks('root', 'mount'))('on this kernel', () => {
  mounterContract('the Linux mounter', () => {
    const scratch = createScratchFolder();
    const [forbiddenFolder, publishedFolder] = [join(scratch.folder, 'state'), join(scratch.folder, 'state/published')];
    mkdirSync(publishedFolder, { recursive: true });
    const clock = systemClock();
    const mounter = createLinuxMounter({
      clock,
      run: createRunProgram(clock),
      forbiddenFolders: () => [forbiddenFolder],
      storeRoots: () => [],
      publishedFolder,
    });
    return {
      mounter,
      folder: scratch.folder,
      forbidden: forbiddenFolder,
      published: publishedFolder,
      occupy: (at, how) =>
        void execFileSync('mount', ['-t', 'tmpfs', '-o', `size=1m${how?.readOnly ? ',ro' : ''}`, '--', 'test', at]),
      use: (at) => {
        const fd = openSync(at, 'r');
        return { [Symbol.dispose]: () => closeSync(fd) };
      },
      [Symbol.dispose]: () => scratch[Symbol.dispose](),
    };
  });
});

unableMounterContract('without the right to mount', () => {
  const root = { at: '/', device: '0:1', root: '/', source: '/dev/root', type: 'ext4', readOnly: false };
  const unable = { why: 'mounting takes root on Linux', action: 'Start Stowage as root.' };
  return { mounter: createUnableMounter(unable, async () => [root]), folder: '/srv' };
});
