import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Mounter } from '#core/ports.ts';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { createLinuxMounter } from './linux-mounter.ts';
import { type MountCalls, mountCalls } from './mount-calls.ts';
import { readMountTable } from './mountinfo.ts';
import { createRun, type Run } from './run-program.ts';

const clock = systemClock();
const real = createRun(clock);
const writable = { readOnly: false };

describe.skipIf(needs('root', 'mount'))('a user who can write to a folder above a target', () => {
  let ground: ScratchFolder;
  /** The programs that ran. */
  let ran: string[];
  const at = (name: string): string => join(ground.folder, name);
  const moved = (path: string) => ({
    code: 'conflict',
    reason: 'path-moved',
    message: `${path} now leads elsewhere: it was moved, or a symbolic link replaced a part of it`,
  });

  beforeEach(() => {
    ground = createScratchFolder();
    ran = [];
    for (const name of ['from', 'theirs/to', 'elsewhere/to']) mkdirSync(at(name), { recursive: true });
    for (const name of ['file', 'theirs/disk', 'elsewhere/disk']) writeFileSync(at(name), '');
  });
  afterEach(() => ground[Symbol.dispose]());

  /** Replaces their folder with a link to another one. */
  function swap(): void {
    renameSync(at('theirs'), at('away'));
    symlinkSync('elsewhere', at('theirs'));
  }

  /** A mounter that is disturbed once: after it read the mount table, or just before it runs a program. */
  function mounter(disturbed: { readonly afterLook?: () => void; readonly beforeRun?: () => void } = {}): Mounter {
    let { afterLook, beforeRun } = disturbed;
    const disturb = (tool: string): void => {
      ran.push(tool);
      beforeRun?.();
      beforeRun = undefined;
    };
    const run: Run = async (tool, ...rest) => {
      disturb(tool);
      return await real(tool, ...rest);
    };
    const calls: MountCalls = {
      ...mountCalls,
      bind: (...places) => {
        disturb('mount');
        mountCalls.bind(...places);
      },
      bindAs: (...about) => {
        disturb('mount');
        return mountCalls.bindAs(...about);
      },
      unmount: (...about) => {
        disturb('umount');
        mountCalls.unmount(...about);
      },
    };
    const readTable: typeof readMountTable = async () => {
      const table = await readMountTable();
      afterLook?.();
      afterLook = undefined;
      return table;
    };
    return createLinuxMounter({ clock, run, calls, readTable, forbidden: () => [], storeRoots: () => [] });
  }

  test.each([
    ['folder', 'from', 'theirs/to'],
    ['file', 'file', 'theirs/disk'],
  ])('cannot redirect the mount of a %s before it is made', async (_, from, to) => {
    const bound = mounter({ afterLook: swap }).bind(at(from), at(to), writable, ground.scope);
    await expect(bound).rejects.toMatchObject(moved(at(to)));
    expect(ran).toEqual([]);
    expect(ground.mounts()).toEqual([]);
  });

  test.each([
    ['folder', 'from', 'theirs/to'],
    ['file', 'file', 'theirs/disk'],
  ])('cannot redirect the mount of a %s while it is made', async (_, from, to) => {
    const bound = mounter({ beforeRun: swap }).bind(at(from), at(to), writable, ground.scope);
    await expect(bound).rejects.toMatchObject(moved(at(to)));
    expect(ran).toEqual(['mount', 'umount']);
    expect(ground.mounts()).toEqual([]);
  });

  test('cannot replace the target or the source with a link', async () => {
    const replaced = (path: string) => () => {
      rmSync(at(path), { recursive: true });
      symlinkSync(at('elsewhere/to'), at(path));
    };
    const target = mounter({ afterLook: replaced('theirs/to') });
    await expect(target.bind(at('from'), at('theirs/to'), writable, ground.scope)).rejects.toMatchObject(
      moved(at('theirs/to')),
    );
    mkdirSync(at('to'));
    const source = mounter({ afterLook: replaced('from') });
    await expect(source.bind(at('from'), at('to'), writable, ground.scope)).rejects.toMatchObject(moved(at('from')));
    expect(ground.mounts()).toEqual([]);
  });

  test('cannot have a folder or file created elsewhere', async () => {
    for (const access of ['filesystem', 'block'] as const) {
      const made = mounter({ afterLook: swap }).makeTarget(at('theirs/to/new'), access, ground.scope);
      await expect(made).rejects.toMatchObject(moved(at('theirs/to')));
      expect(readdirSync(at('elsewhere/to'))).toEqual([]);
      await expect(mounter().makeTarget(at('theirs/new'), access, ground.scope)).rejects.toMatchObject(
        moved(at('theirs')),
      );
      expect(readdirSync(at('elsewhere')).toSorted()).toEqual(['disk', 'to']);
      rmSync(at('theirs'));
      renameSync(at('away'), at('theirs'));
    }
  });

  test('cannot have a folder or file removed elsewhere', async () => {
    for (const folder of ['theirs/to', 'elsewhere/to']) mkdirSync(at(`${folder}/made`));
    await mounter({ afterLook: swap }).removeTarget(at('theirs/to/made'), ground.scope);
    await mounter().removeTarget(at('theirs/disk'), ground.scope);
    for (const folder of ['elsewhere', 'away']) {
      expect(readdirSync(at(folder)).toSorted()).toEqual(['disk', 'to']);
      expect(readdirSync(at(`${folder}/to`))).toEqual(['made']);
    }
  });

  test('cannot have another mount unmounted or changed', async () => {
    for (const folder of ['theirs', 'elsewhere'])
      await mounter().bind(at('from'), at(`${folder}/to`), writable, ground.scope);
    ran = [];
    const disturbed = mounter({ afterLook: swap });
    await expect(disturbed.unmount(at('theirs/to'), ground.scope)).rejects.toMatchObject(moved(at('theirs')));
    rmSync(at('theirs'));
    renameSync(at('away'), at('theirs'));
    const tightened = mounter({ afterLook: swap }).bind(at('from'), at('theirs/to'), { readOnly: true }, ground.scope);
    await expect(tightened).rejects.toMatchObject(moved(at('theirs/to')));
    expect(ran).toEqual([]);
    writeFileSync(at('elsewhere/to/written'), '');
    expect(existsSync(at('from/written'))).toBe(true);
  });
});
