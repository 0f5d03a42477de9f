import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, realpathSync, renameSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import type { HeldPath } from './held-path.ts';
import { createHoldLocal } from './hold-local.ts';
import { type MountTable, readMountTable } from './mountinfo.ts';

describe.skipIf(needs('root', 'mount'))('the synchronous open on the disk of the records', () => {
  let ground: ScratchFolder;
  let table: MountTable;
  const at = (name: string): string => join(ground.folder, name);
  const held = async (path: string): Promise<string | undefined> => {
    await using found: HeldPath | undefined = createHoldLocal(ground.folder)(path, table);
    return found?.path;
  };

  beforeEach(async () => {
    ground = createScratchFolder();
    for (const name of ['folder/inner', 'disk']) mkdirSync(at(name), { recursive: true });
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', '--', 'stowage-test', at('disk')]);
    table = await readMountTable();
  });
  afterEach(() => ground[Symbol.dispose]());

  test('opens a folder and a file', async () => {
    writeFileSync(at('file'), '');
    expect([await held(at('folder/inner')), await held(at('file'))]).toEqual([at('folder/inner'), at('file')]);
    await using folder = createHoldLocal(ground.folder)(at('folder'), table);
    expect(folder?.stats.isDirectory()).toBe(true);
    expect(readdirSync(folder?.through ?? '')).toEqual(['inner']);
    renameSync(at('folder'), at('moved'));
    expect(folder?.where()).toBe(at('moved'));
  });

  test('refuses paths on other disks, missing paths, and paths with a symbolic link', async () => {
    symlinkSync('folder', at('link'));
    symlinkSync('disk', at('away'));
    for (const name of ['disk', 'disk/x', 'missing', 'link', 'link/inner', 'away/x'])
      expect([name, await held(at(name))]).toEqual([name, undefined]);
    expect(createHoldLocal(undefined)(at('folder'), table)).toBeUndefined();
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
      expect([name, await held(`${ground.folder}/${name}`)]).toEqual([name, undefined]);
    expect(await held('.')).toBeUndefined();
    mkdirSync(at('folder/..a'));
    mkdirSync(at('.b'));
    expect([await held(at('folder/..a')), await held(at('.b'))]).toEqual([at('folder/..a'), at('.b')]);
  });

  test('leaks no descriptor', async () => {
    symlinkSync('folder', at('link'));
    const mine = (): number =>
      readdirSync('/proc/self/fd').filter((fd) => {
        try {
          return realpathSync(`/proc/self/fd/${fd}`).startsWith(ground.folder);
        } catch {
          return false;
        }
      }).length;
    for (const name of ['folder', 'link', 'disk', 'missing']) await held(at(name));
    expect(mine()).toBe(0);
  });
});
