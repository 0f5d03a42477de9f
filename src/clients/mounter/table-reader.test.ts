import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { createTableReader, type MountTable } from './mountinfo.ts';

describe.skipIf(lacks('root', 'mount'))('the mount table reader', () => {
  let scratch: ScratchFolder;
  const scratchPath = (name: string): string => join(scratch.folder, name);
  const mountTmpfs = (name: string): void => {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', '--', 'stowage-test', scratchPath(name)]);
  };
  const isMounted = async (read: () => Promise<MountTable>, name: string): Promise<boolean> =>
    (await read()).mountAt(scratchPath(name)) !== undefined;

  beforeEach(() => {
    scratch = createScratchFolder();
    for (const name of ['one', 'other/inner']) mkdirSync(scratchPath(name), { recursive: true });
  });
  afterEach(() => scratch[Symbol.dispose]());

  test('reads once in a turn without changes', async () => {
    const read = createTableReader();
    const first = await read();
    expect(await read()).toBe(first);
    expect(first.entries.length).toBe(readFileSync('/proc/self/mountinfo', 'utf8').trimEnd().split('\n').length);
  });

  test('sees mounts, changes and unmounts of the same turn', async () => {
    const read = createTableReader();
    expect(await isMounted(read, 'one')).toBe(false);
    mountTmpfs('one');
    expect(await isMounted(read, 'one')).toBe(true);
    expect((await read()).mountAt(scratchPath('one'))?.readOnly).toBe(false);
    execFileSync('mount', ['-o', 'remount,bind,ro', scratchPath('one')]);
    expect((await read()).mountAt(scratchPath('one'))?.readOnly).toBe(true);
    execFileSync('umount', [scratchPath('one')]);
    expect(await isMounted(read, 'one')).toBe(false);
  });

  test('reads changes of a turn once for all callers, with the state at its end', async () => {
    const read = createTableReader();
    await read();
    mountTmpfs('one');
    const first = read();
    mountTmpfs('other/inner');
    const [one, both] = await Promise.all([first, read()]);
    expect(one).toBe(both);
    expect(both.mountAt(scratchPath('other/inner'))?.source).toBe('stowage-test');
    execFileSync('umount', [scratchPath('one')]);
    expect(await isMounted(read, 'one')).toBe(false);
  });

  test('fails for all waiting callers if the read fails, and reads again for later ones', async () => {
    const line = (where: string): string => `20 1 8:1 / ${where} rw - ext4 a rw\n`;
    writeFileSync(scratchPath('table'), line('/'));
    const read = createTableReader(scratchPath('table'));
    await read();
    rmSync(scratchPath('table'));
    const reads = [read(), read()].map((one) => expect(one).rejects.toThrow('ENOENT'));
    await Promise.all(reads);
    writeFileSync(scratchPath('table'), line('/'));
    expect((await read()).mountAt('/')?.source).toBe('a');
  });

  test('sees in the next turn that a mount moved with its folder, which the kernel does not report', async () => {
    const read = createTableReader();
    mountTmpfs('other/inner');
    expect(await isMounted(read, 'other/inner')).toBe(true);
    renameSync(scratchPath('other'), scratchPath('moved'));
    await setImmediate();
    expect([await isMounted(read, 'other/inner'), await isMounted(read, 'moved/inner')]).toEqual([false, true]);
  });

  test('always reads a file that is not in /proc', async () => {
    const line = (where: string): string => `20 1 8:1 / ${where} rw - ext4 a rw\n`;
    writeFileSync(scratchPath('table'), line('/'));
    const read = createTableReader(scratchPath('table'));
    expect((await read()).mountAt('/')?.source).toBe('a');
    writeFileSync(scratchPath('table'), `${line('/')}30 20 8:2 / /data rw - ext4 b rw\n`);
    expect((await read()).mountAt('/data')?.source).toBe('b');
  });
});
