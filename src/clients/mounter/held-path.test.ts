import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Mounter } from '#core/ports.ts';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { readMountTable } from './mountinfo.ts';
import { createRunProgram, type RunProgram } from './run-program.ts';

const clock = systemClock();
const runProgram = createRunProgram(clock);
const writable = { readOnly: false };

describe.skipIf(lacks('root', 'mount'))('a user who can write to a folder above a target', () => {
  let scratch: ScratchFolder;
  /** The programs that ran. */
  let ranTools: string[];
  const scratchPath = (name: string): string => join(scratch.folder, name);
  const pathMovedError = (path: string) => ({
    code: 'conflict',
    reason: 'path-moved',
    message: `${path} now leads elsewhere: it was moved, or a symbolic link replaced a part of it`,
  });

  beforeEach(() => {
    scratch = createScratchFolder();
    ranTools = [];
    for (const name of ['from', 'theirs/to', 'elsewhere/to']) mkdirSync(scratchPath(name), { recursive: true });
    for (const name of ['file', 'theirs/disk', 'elsewhere/disk']) writeFileSync(scratchPath(name), '');
  });
  afterEach(() => scratch[Symbol.dispose]());

  /** Replaces their folder with a link to another one. */
  function replaceFolderWithLink(): void {
    renameSync(scratchPath('theirs'), scratchPath('away'));
    symlinkSync('elsewhere', scratchPath('theirs'));
  }

  /** A mounter that is disturbed once: after it read the mount table, or just before it runs a program. */
  function mounter(disturbed: { readonly afterTableRead?: () => void; readonly beforeRun?: () => void } = {}): Mounter {
    let { afterTableRead, beforeRun } = disturbed;
    const disturb = (tool: string): void => {
      ranTools.push(tool);
      beforeRun?.();
      beforeRun = undefined;
    };
    const run: RunProgram = async (tool, ...rest) => {
      disturb(tool);
      return await runProgram(tool, ...rest);
    };
    const calls: MountCalls = {
      ...mountCalls,
      bind: (...places) => {
        disturb('mount');
        mountCalls.bind(...places);
      },
      bindWithFlags: (...about) => {
        disturb('mount');
        return mountCalls.bindWithFlags(...about);
      },
      unmount: (...about) => {
        disturb('umount');
        mountCalls.unmount(...about);
      },
    };
    const readTable: typeof readMountTable = async () => {
      const table = await readMountTable();
      afterTableRead?.();
      afterTableRead = undefined;
      return table;
    };
    return createLinuxMounter({ clock, run, calls, readTable, forbiddenFolders: () => [], storeRoots: () => [] });
  }

  test.each([
    ['folder', 'from', 'theirs/to'],
    ['file', 'file', 'theirs/disk'],
  ])('cannot redirect the mount of a %s before it is made', async (_, from, to) => {
    const bound = mounter({ afterTableRead: replaceFolderWithLink }).bind(
      scratchPath(from),
      scratchPath(to),
      writable,
      scratch.scope,
    );
    await expect(bound).rejects.toMatchObject(pathMovedError(scratchPath(to)));
    expect(ranTools).toEqual([]);
    expect(scratch.mounts()).toEqual([]);
  });

  test.each([
    ['folder', 'from', 'theirs/to'],
    ['file', 'file', 'theirs/disk'],
  ])('cannot redirect the mount of a %s while it is made', async (_, from, to) => {
    const bound = mounter({ beforeRun: replaceFolderWithLink }).bind(
      scratchPath(from),
      scratchPath(to),
      writable,
      scratch.scope,
    );
    await expect(bound).rejects.toMatchObject(pathMovedError(scratchPath(to)));
    expect(ranTools).toEqual(['mount', 'umount']);
    expect(scratch.mounts()).toEqual([]);
  });

  test('cannot replace the target or the source with a link', async () => {
    const replaceWithLink = (path: string) => () => {
      rmSync(scratchPath(path), { recursive: true });
      symlinkSync(scratchPath('elsewhere/to'), scratchPath(path));
    };
    const target = mounter({ afterTableRead: replaceWithLink('theirs/to') });
    await expect(
      target.bind(scratchPath('from'), scratchPath('theirs/to'), writable, scratch.scope),
    ).rejects.toMatchObject(pathMovedError(scratchPath('theirs/to')));
    mkdirSync(scratchPath('to'));
    const source = mounter({ afterTableRead: replaceWithLink('from') });
    await expect(source.bind(scratchPath('from'), scratchPath('to'), writable, scratch.scope)).rejects.toMatchObject(
      pathMovedError(scratchPath('from')),
    );
    expect(scratch.mounts()).toEqual([]);
  });

  test('cannot have a folder or file created elsewhere', async () => {
    for (const access of ['filesystem', 'block'] as const) {
      const creation = mounter({ afterTableRead: replaceFolderWithLink }).makeTarget(
        scratchPath('theirs/to/new'),
        access,
        scratch.scope,
      );
      await expect(creation).rejects.toMatchObject(pathMovedError(scratchPath('theirs/to')));
      expect(readdirSync(scratchPath('elsewhere/to'))).toEqual([]);
      await expect(mounter().makeTarget(scratchPath('theirs/new'), access, scratch.scope)).rejects.toMatchObject(
        pathMovedError(scratchPath('theirs')),
      );
      expect(readdirSync(scratchPath('elsewhere')).toSorted()).toEqual(['disk', 'to']);
      rmSync(scratchPath('theirs'));
      renameSync(scratchPath('away'), scratchPath('theirs'));
    }
  });

  test('cannot have a folder or file removed elsewhere', async () => {
    for (const folder of ['theirs/to', 'elsewhere/to']) mkdirSync(scratchPath(`${folder}/made`));
    await mounter({ afterTableRead: replaceFolderWithLink }).removeTarget(scratchPath('theirs/to/made'), scratch.scope);
    await mounter().removeTarget(scratchPath('theirs/disk'), scratch.scope);
    for (const folder of ['elsewhere', 'away']) {
      expect(readdirSync(scratchPath(folder)).toSorted()).toEqual(['disk', 'to']);
      expect(readdirSync(scratchPath(`${folder}/to`))).toEqual(['made']);
    }
  });

  test('cannot have another mount unmounted or changed', async () => {
    for (const folder of ['theirs', 'elsewhere'])
      await mounter().bind(scratchPath('from'), scratchPath(`${folder}/to`), writable, scratch.scope);
    ranTools = [];
    const disturbed = mounter({ afterTableRead: replaceFolderWithLink });
    await expect(disturbed.unmount(scratchPath('theirs/to'), scratch.scope)).rejects.toMatchObject(
      pathMovedError(scratchPath('theirs')),
    );
    rmSync(scratchPath('theirs'));
    renameSync(scratchPath('away'), scratchPath('theirs'));
    const readOnlyBind = mounter({ afterTableRead: replaceFolderWithLink }).bind(
      scratchPath('from'),
      scratchPath('theirs/to'),
      { readOnly: true },
      scratch.scope,
    );
    await expect(readOnlyBind).rejects.toMatchObject(pathMovedError(scratchPath('theirs/to')));
    expect(ranTools).toEqual([]);
    writeFileSync(scratchPath('elsewhere/to/written'), '');
    expect(existsSync(scratchPath('from/written'))).toBe(true);
  });
});
