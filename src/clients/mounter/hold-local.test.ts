import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, realpathSync, renameSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import type { HeldPath } from './held-path.ts';
import { createHoldLocal } from './hold-local.ts';
import { type MountTable, readMountTable } from './mountinfo.ts';

describe.skipIf(lacks('root', 'mount'))('the synchronous open on the disk of the records', () => {
  let scratch: ScratchFolder;
  let table: MountTable;
  const scratchPath = (name: string): string => join(scratch.folder, name);
  const heldPathOf = async (path: string): Promise<string | undefined> => {
    await using found: HeldPath | undefined = createHoldLocal(scratch.folder)(path, table);
    return found?.path;
  };

  beforeEach(async () => {
    scratch = createScratchFolder();
    for (const name of ['folder/inner', 'disk']) mkdirSync(scratchPath(name), { recursive: true });
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', '--', 'stowage-test', scratchPath('disk')]);
    table = await readMountTable();
  });
  afterEach(() => scratch[Symbol.dispose]());

  test('opens a folder and a file', async () => {
    writeFileSync(scratchPath('file'), '');
    expect([await heldPathOf(scratchPath('folder/inner')), await heldPathOf(scratchPath('file'))]).toEqual([
      scratchPath('folder/inner'),
      scratchPath('file'),
    ]);
    await using folder = createHoldLocal(scratch.folder)(scratchPath('folder'), table);
    expect(folder?.stats.isDirectory()).toBe(true);
    expect(readdirSync(folder?.procPath ?? '')).toEqual(['inner']);
    renameSync(scratchPath('folder'), scratchPath('moved'));
    expect(folder?.currentPath()).toBe(scratchPath('moved'));
  });

  test('refuses paths on other disks, missing paths, and paths with a symbolic link', async () => {
    symlinkSync('folder', scratchPath('link'));
    symlinkSync('disk', scratchPath('away'));
    for (const name of ['disk', 'disk/x', 'missing', 'link', 'link/inner', 'away/x'])
      expect([name, await heldPathOf(scratchPath(name))]).toEqual([name, undefined]);
    expect(createHoldLocal(undefined)(scratchPath('folder'), table)).toBeUndefined();
  });

  test('refuses paths that are not canonical', async () => {
    for (const name of [
      'folder/',
      'folder//inner',
      'folder/.',
      'folder/./inner',
      'folder/../folder',
      'folder/inner/..',
    ])
      expect([name, await heldPathOf(`${scratch.folder}/${name}`)]).toEqual([name, undefined]);
    expect(await heldPathOf('.')).toBeUndefined();
    mkdirSync(scratchPath('folder/..a'));
    mkdirSync(scratchPath('.b'));
    expect([await heldPathOf(scratchPath('folder/..a')), await heldPathOf(scratchPath('.b'))]).toEqual([
      scratchPath('folder/..a'),
      scratchPath('.b'),
    ]);
  });

  test('leaks no descriptor', async () => {
    symlinkSync('folder', scratchPath('link'));
    const countOwnDescriptors = (): number =>
      readdirSync('/proc/self/fd').filter((fd) => {
        try {
          return realpathSync(`/proc/self/fd/${fd}`).startsWith(scratch.folder);
        } catch {
          return false;
        }
      }).length;
    for (const name of ['folder', 'link', 'disk', 'missing']) await heldPathOf(scratchPath(name));
    expect(countOwnDescriptors()).toBe(0);
  });
});
