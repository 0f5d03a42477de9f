import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { createTableReader, type MountTable } from './mountinfo.ts';

describe.skipIf(needs('root', 'mount'))('the mount table reader', () => {
  let ground: ScratchFolder;
  const at = (name: string): string => join(ground.folder, name);
  const mount = (name: string): void => {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', '--', 'stowage-test', at(name)]);
  };
  const shows = async (read: () => Promise<MountTable>, name: string): Promise<boolean> =>
    (await read()).at(at(name)) !== undefined;

  beforeEach(() => {
    ground = createScratchFolder();
    for (const name of ['one', 'other/inner']) mkdirSync(at(name), { recursive: true });
  });
  afterEach(() => ground[Symbol.dispose]());

  test('reads once in a turn without changes', async () => {
    const read = createTableReader();
    const first = await read();
    expect(await read()).toBe(first);
    expect(first.entries.length).toBe(readFileSync('/proc/self/mountinfo', 'utf8').trimEnd().split('\n').length);
  });

  test('sees mounts, changes and unmounts of the same turn', async () => {
    const read = createTableReader();
    expect(await shows(read, 'one')).toBe(false);
    mount('one');
    expect(await shows(read, 'one')).toBe(true);
    expect((await read()).at(at('one'))?.readOnly).toBe(false);
    execFileSync('mount', ['-o', 'remount,bind,ro', at('one')]);
    expect((await read()).at(at('one'))?.readOnly).toBe(true);
    execFileSync('umount', [at('one')]);
    expect(await shows(read, 'one')).toBe(false);
  });

  test('reads changes of a turn once for all callers, with the state at its end', async () => {
    const read = createTableReader();
    await read();
    mount('one');
    const first = read();
    mount('other/inner');
    const [one, both] = await Promise.all([first, read()]);
    expect(one).toBe(both);
    expect(both.at(at('other/inner'))?.source).toBe('stowage-test');
    execFileSync('umount', [at('one')]);
    expect(await shows(read, 'one')).toBe(false);
  });

  test('fails for all waiting callers if the read fails, and reads again for later ones', async () => {
    const line = (where: string): string => `20 1 8:1 / ${where} rw - ext4 a rw\n`;
    writeFileSync(at('table'), line('/'));
    const read = createTableReader(at('table'));
    await read();
    rmSync(at('table'));
    const asked = [read(), read()].map((one) => expect(one).rejects.toThrow('ENOENT'));
    await Promise.all(asked);
    writeFileSync(at('table'), line('/'));
    expect((await read()).at('/')?.source).toBe('a');
  });

  test('sees in the next turn that a mount moved with its folder, which the kernel does not report', async () => {
    const read = createTableReader();
    mount('other/inner');
    expect(await shows(read, 'other/inner')).toBe(true);
    renameSync(at('other'), at('moved'));
    await setImmediate();
    expect([await shows(read, 'other/inner'), await shows(read, 'moved/inner')]).toEqual([false, true]);
  });

  test('always reads a file that is not in /proc', async () => {
    const line = (where: string): string => `20 1 8:1 / ${where} rw - ext4 a rw\n`;
    writeFileSync(at('table'), line('/'));
    const read = createTableReader(at('table'));
    expect((await read()).at('/')?.source).toBe('a');
    writeFileSync(at('table'), `${line('/')}30 20 8:2 / /data rw - ext4 b rw\n`);
    expect((await read()).at('/data')?.source).toBe('b');
  });
});
