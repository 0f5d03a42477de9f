import { execFileSync } from 'node:child_process';
import { existsSync, lstatSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { createHoldLocal, type HoldLocal } from './hold-local.ts';
import { readMountTable } from './mountinfo.ts';
import { createPathAccess } from './path-access.ts';
import { checkPath } from './paths.ts';
import { createTargets } from './targets.ts';

describe.skipIf(lacks('linux')).each([
  ['on any disk', false],
  ['on the disk of our records', true],
])('a target %s', (_, isLocal) => {
  let scratch: ScratchFolder;
  const holdLocal: HoldLocal = (path, table) => (isLocal ? createHoldLocal(scratch.folder)(path, table) : undefined);
  const scratchPath = (name: string): string => join(scratch.folder, name);
  const accessPath = createPathAccess(systemClock());
  const targets = createTargets({
    accessPath,
    holdLocal,
    readTable: readMountTable,
    forbiddenFolders: () => [scratchPath('state')],
  });
  const inspect = (target: string, access: 'filesystem' | 'block' = 'filesystem') =>
    targets.inspectTarget(target, access, scratch.scope);

  beforeEach(() => {
    scratch = createScratchFolder();
    mkdirSync(scratchPath('state'));
  });
  afterEach(() => scratch[Symbol.dispose]());

  test('that is missing is created; repeating succeeds', async () => {
    expect(await inspect(scratchPath('new'))).toEqual({ target: scratchPath('new'), existed: false });
    expect(existsSync(scratchPath('new'))).toBe(false);
    await targets.makeTarget(scratchPath('new'), 'filesystem', scratch.scope);
    await targets.makeTarget(scratchPath('new'), 'filesystem', scratch.scope);
    expect(await inspect(scratchPath('new'))).toEqual({ target: scratchPath('new'), existed: true });
    await targets.makeTarget(scratchPath('disk'), 'block', scratch.scope);
    await targets.makeTarget(scratchPath('disk'), 'block', scratch.scope);
    expect(lstatSync(scratchPath('disk')).isFile()).toBe(true);
    expect(await inspect(scratchPath('disk'), 'block')).toEqual({ target: scratchPath('disk'), existed: true });
  });

  test('is returned with its symbolic links resolved', async () => {
    mkdirSync(scratchPath('real'));
    symlinkSync('real', scratchPath('link'));
    expect(await inspect(join(scratchPath('link'), 'x'))).toEqual({
      target: join(scratchPath('real'), 'x'),
      existed: false,
    });
    expect(await inspect(scratchPath('link'))).toEqual({ target: scratchPath('real'), existed: true });
  });

  test('is located through links, whether it exists or not', async () => {
    mkdirSync(join(scratchPath('real'), 'x'), { recursive: true });
    symlinkSync('real', scratchPath('link'));
    symlinkSync('nowhere', scratchPath('dangling'));
    const locate = (target: string) => targets.resolvePath(target, scratch.scope);
    for (const name of ['x', 'missing']) {
      expect(await locate(join(scratchPath('link'), name))).toBe(join(scratchPath('real'), name));
      expect(await locate(join(scratchPath('real'), name))).toBe(join(scratchPath('real'), name));
    }
    expect(await locate(scratchPath('link'))).toBe(scratchPath('real'));
    expect(await locate(scratchPath('dangling'))).toBe(scratchPath('dangling'));
    expect(await locate(join(scratchPath('missing'), 'x'))).toBeUndefined();
    await expect(locate('/a/../b')).rejects.toMatchObject({ reason: 'path-invalid' });
  });

  test('that would hide data is refused', async () => {
    mkdirSync(join(scratchPath('full'), 'x'), { recursive: true });
    writeFileSync(scratchPath('written'), 'x');
    await expect(inspect(scratchPath('full'))).rejects.toMatchObject({
      code: 'conflict',
      reason: 'target-not-empty',
      message: `${scratchPath('full')} is not empty; a volume mounted there would hide what is in it`,
      action: 'Give an empty folder, or a path that does not exist yet.',
    });
    await expect(inspect(scratchPath('written'), 'block')).rejects.toMatchObject({ reason: 'target-not-empty' });
  });

  test('of the wrong kind is refused', async () => {
    writeFileSync(scratchPath('file'), '');
    await expect(inspect(scratchPath('file'))).rejects.toMatchObject({ code: 'conflict', reason: 'target-kind' });
    await expect(inspect(scratchPath('state').replace('state', ''), 'block')).rejects.toMatchObject({
      code: 'invalid',
    });
    mkdirSync(scratchPath('folder'));
    await expect(inspect(scratchPath('folder'), 'block')).rejects.toMatchObject({
      code: 'conflict',
      reason: 'target-kind',
    });
  });

  test('with a missing parent or a dangling link is refused with advice', async () => {
    await expect(inspect(join(scratchPath('no'), 'x'))).rejects.toMatchObject({
      code: 'not-found',
      action: `Create the folder first: mkdir -p ${scratchPath('no')}`,
    });
    symlinkSync('nowhere', scratchPath('dangling'));
    await expect(inspect(scratchPath('dangling'))).rejects.toMatchObject({
      code: 'conflict',
      reason: 'target-dangling',
    });
  });

  test.each([
    '/',
    '/proc',
    '/proc/1',
    '/sys/x',
    '/dev/shm',
    '/etc',
    '/etc/x',
    '/usr',
    '/usr/local',
    '/var',
    '/tmp',
    '/home',
  ])('%s is refused because it belongs to the system', async (target) => {
    await expect(inspect(target)).rejects.toMatchObject({ code: 'invalid', reason: 'target-forbidden' });
  });

  test("in Stowage's own folders is refused, also through a link", async () => {
    symlinkSync('state', scratchPath('innocent'));
    for (const target of [
      scratchPath('state'),
      join(scratchPath('state'), 'x'),
      scratchPath('innocent'),
      join(scratchPath('innocent'), 'x'),
    ]) {
      await expect(inspect(target)).rejects.toMatchObject({ code: 'invalid', reason: 'target-forbidden' });
    }
  });

  test.each([
    '',
    'relative',
    '-o',
    '/a/../b',
    '/a//b',
    '/a/',
    '/a/.',
    '/a\0b',
    `/${'x'.repeat(256)}`,
    `/${'x/'.repeat(2500)}x`,
  ])('%j is refused because it is not a valid path', async (target) => {
    await expect(inspect(target)).rejects.toMatchObject({ code: 'invalid', reason: 'path-invalid' });
  });

  test('that passes the check cannot be taken for an option, and is canonical', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom('/', '.', '-', 'a', '\0', ' '), maxLength: 12 }), (path) => {
        try {
          checkPath(path);
        } catch {
          return;
        }
        expect(path).toMatch(/^\/(?!.*(?:\/\/|\/$|\/\.{1,2}(?:\/|$)|\0))|^\/$/);
      }),
    );
  });

  test('is removed if it is empty, and otherwise stays; a missing one counts as removed', async () => {
    mkdirSync(join(scratchPath('full'), 'x'), { recursive: true });
    mkdirSync(scratchPath('empty'));
    writeFileSync(scratchPath('file'), '');
    writeFileSync(scratchPath('written'), 'x');
    for (const name of ['full', 'empty', 'file', 'written', 'empty', 'absent', 'absent/below']) {
      await targets.removeTarget(scratchPath(name), scratch.scope);
    }
    expect(['full', 'empty', 'file', 'written'].filter((name) => existsSync(scratchPath(name)))).toEqual([
      'full',
      'written',
    ]);
  });

  test.skipIf(lacks('mount'))(
    'with something mounted on it stays, and is not accessed, since its server may be gone',
    async () => {
      mkdirSync(scratchPath('theirs'));
      execFileSync('mount', ['-t', 'tmpfs', 'none', scratchPath('theirs')]);
      try {
        const failOnAccess = async (): Promise<never> => expect.fail('it was looked at');
        const targetsWithoutAccess = createTargets({
          accessPath: failOnAccess,
          holdLocal,
          readTable: readMountTable,
          forbiddenFolders: () => [],
        });
        const logged: string[] = [];
        const log = { ...scratch.scope.log, info: (message: string) => void logged.push(message) };
        await targetsWithoutAccess.removeTarget(scratchPath('theirs'), { ...scratch.scope, log });
        expect([existsSync(scratchPath('theirs')), logged]).toEqual([true, []]);
      } finally {
        execFileSync('umount', [scratchPath('theirs')]);
      }
    },
  );
});
