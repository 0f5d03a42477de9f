import { execFileSync } from 'node:child_process';
import { existsSync, lstatSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { createHoldLocal, type HoldLocal } from './hold-local.ts';
import { readMountTable } from './mountinfo.ts';
import { createPathAccess } from './path-access.ts';
import { checkPath } from './paths.ts';
import { createTargets } from './targets.ts';

describe.skipIf(needs('linux')).each([
  ['on any disk', false],
  ['on the disk of our records', true],
])('a target %s', (_, isNear) => {
  let ground: ScratchFolder;
  const near: HoldLocal = (path, table) => (isNear ? createHoldLocal(ground.folder)(path, table) : undefined);
  const at = (name: string): string => join(ground.folder, name);
  const accessPath = createPathAccess(systemClock());
  const targets = createTargets({ accessPath, near, readTable: readMountTable, forbidden: () => [at('state')] });
  const inspect = (target: string, access: 'filesystem' | 'block' = 'filesystem') =>
    targets.inspectTarget(target, access, ground.scope);

  beforeEach(() => {
    ground = createScratchFolder();
    mkdirSync(at('state'));
  });
  afterEach(() => ground[Symbol.dispose]());

  test('that is missing is created; repeating succeeds', async () => {
    expect(await inspect(at('new'))).toEqual({ target: at('new'), existed: false });
    expect(existsSync(at('new'))).toBe(false);
    await targets.makeTarget(at('new'), 'filesystem', ground.scope);
    await targets.makeTarget(at('new'), 'filesystem', ground.scope);
    expect(await inspect(at('new'))).toEqual({ target: at('new'), existed: true });
    await targets.makeTarget(at('disk'), 'block', ground.scope);
    await targets.makeTarget(at('disk'), 'block', ground.scope);
    expect(lstatSync(at('disk')).isFile()).toBe(true);
    expect(await inspect(at('disk'), 'block')).toEqual({ target: at('disk'), existed: true });
  });

  test('is returned with its symbolic links resolved', async () => {
    mkdirSync(at('real'));
    symlinkSync('real', at('link'));
    expect(await inspect(join(at('link'), 'x'))).toEqual({ target: join(at('real'), 'x'), existed: false });
    expect(await inspect(at('link'))).toEqual({ target: at('real'), existed: true });
  });

  test('is located through links, whether it exists or not', async () => {
    mkdirSync(join(at('real'), 'x'), { recursive: true });
    symlinkSync('real', at('link'));
    symlinkSync('nowhere', at('dangling'));
    const locate = (target: string) => targets.resolvePath(target, ground.scope);
    for (const name of ['x', 'missing']) {
      expect(await locate(join(at('link'), name))).toBe(join(at('real'), name));
      expect(await locate(join(at('real'), name))).toBe(join(at('real'), name));
    }
    expect(await locate(at('link'))).toBe(at('real'));
    expect(await locate(at('dangling'))).toBe(at('dangling'));
    expect(await locate(join(at('missing'), 'x'))).toBeUndefined();
    await expect(locate('/a/../b')).rejects.toMatchObject({ reason: 'path-invalid' });
  });

  test('that would hide data is refused', async () => {
    mkdirSync(join(at('full'), 'x'), { recursive: true });
    writeFileSync(at('written'), 'x');
    await expect(inspect(at('full'))).rejects.toMatchObject({
      code: 'conflict',
      reason: 'target-not-empty',
      message: `${at('full')} is not empty; a volume mounted there would hide what is in it`,
      action: 'Give an empty folder, or a path that does not exist yet.',
    });
    await expect(inspect(at('written'), 'block')).rejects.toMatchObject({ reason: 'target-not-empty' });
  });

  test('of the wrong kind is refused', async () => {
    writeFileSync(at('file'), '');
    await expect(inspect(at('file'))).rejects.toMatchObject({ code: 'conflict', reason: 'target-kind' });
    await expect(inspect(at('state').replace('state', ''), 'block')).rejects.toMatchObject({ code: 'invalid' });
    mkdirSync(at('folder'));
    await expect(inspect(at('folder'), 'block')).rejects.toMatchObject({ code: 'conflict', reason: 'target-kind' });
  });

  test('with a missing parent or a dangling link is refused with advice', async () => {
    await expect(inspect(join(at('no'), 'x'))).rejects.toMatchObject({
      code: 'not-found',
      action: `Create the folder first: mkdir -p ${at('no')}`,
    });
    symlinkSync('nowhere', at('dangling'));
    await expect(inspect(at('dangling'))).rejects.toMatchObject({ code: 'conflict', reason: 'target-dangling' });
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
    symlinkSync('state', at('innocent'));
    for (const target of [at('state'), join(at('state'), 'x'), at('innocent'), join(at('innocent'), 'x')]) {
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
    mkdirSync(join(at('full'), 'x'), { recursive: true });
    mkdirSync(at('empty'));
    writeFileSync(at('file'), '');
    writeFileSync(at('written'), 'x');
    for (const name of ['full', 'empty', 'file', 'written', 'empty', 'absent', 'absent/below']) {
      await targets.removeTarget(at(name), ground.scope);
    }
    expect(['full', 'empty', 'file', 'written'].filter((name) => existsSync(at(name)))).toEqual(['full', 'written']);
  });

  test.skipIf(needs('mount'))(
    'with something mounted on it stays, and is not accessed, since its server may be gone',
    async () => {
      mkdirSync(at('theirs'));
      execFileSync('mount', ['-t', 'tmpfs', 'none', at('theirs')]);
      try {
        const never = async (): Promise<never> => expect.fail('it was looked at');
        const blind = createTargets({ accessPath: never, near, readTable: readMountTable, forbidden: () => [] });
        const said: string[] = [];
        const log = { ...ground.scope.log, info: (message: string) => void said.push(message) };
        await blind.removeTarget(at('theirs'), { ...ground.scope, log });
        expect([existsSync(at('theirs')), said]).toEqual([true, []]);
      } finally {
        execFileSync('umount', [at('theirs')]);
      }
    },
  );
});
