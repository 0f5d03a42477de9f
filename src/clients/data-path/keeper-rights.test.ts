import { execFile } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { searchPath } from '../mounter/tools.ts';
import { keeperRights, protectionPrefix } from './keeper-rights.ts';
import { keeperUser, knownKeeperUser } from './keeper-user.ts';

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-rights-'));
  chmodSync(folder, 0o755);
  onTestFinished(() => rmSync(folder, { recursive: true }));
});

const baseOptions = { user: 61_200, privilegedPorts: false };

test('a keeper has a user of its own, and no capabilities', async () => {
  const { user, commandPrefix, fallbackReason } = await keeperRights({ ...baseOptions, paths: ['/', '/tmp'] });
  expect({ user, why: fallbackReason }).toEqual({ user: 61_200, why: undefined });
  for (const word of ['--reuid=61200', '--clear-groups', '--no-new-privs', '--inh-caps=-all', '--bounding-set=-all'])
    expect(commandPrefix).toContain(word);
});

test('a keeper may get ports below 1024, and nothing else', async () => {
  const { commandPrefix } = await keeperRights({ ...baseOptions, privilegedPorts: true, paths: ['/'] });
  const rights = '-all,+net_bind_service';
  for (const word of [`--inh-caps=${rights}`, `--bounding-set=${rights}`, '--ambient-caps=+net_bind_service'])
    expect(commandPrefix).toContain(word);
});

test('a keeper runs as root without capabilities if other users cannot read the program, and says which path', async () => {
  const closed = join(folder, 'closed');
  mkdirSync(closed, { mode: 0o700 });
  writeFileSync(join(closed, 'program'), '');
  const { user, commandPrefix, fallbackReason } = await keeperRights({
    ...baseOptions,
    paths: [join(closed, 'program')],
  });
  expect({ user, why: fallbackReason }).toEqual({ user: 0, why: `other users have no access to ${closed}` });
  expect(commandPrefix.some((word) => word.startsWith('--reuid'))).toBe(false);
  expect(commandPrefix).toContain('--bounding-set=-all');
});

test('protection against low memory is used as far as permitted and installed', async () => {
  const binFolderWith = (...names: readonly string[]): string => {
    const bin = mkdtempSync(join(folder, 'bin-'));
    for (const name of names) writeFileSync(join(bin, name), '', { mode: 0o755 });
    return `/nowhere:${bin}`;
  };
  const [limit, score] = [
    ['prlimit', '--memlock=unlimited', '--'],
    ['choom', '-n', '-900', '--'],
  ] as const;
  expect(await protectionPrefix(true, binFolderWith('prlimit', 'choom'))).toEqual({
    commandPrefix: [...limit, ...score],
    missingPrograms: [],
  });
  expect(await protectionPrefix(true, binFolderWith('prlimit'))).toEqual({
    commandPrefix: limit,
    missingPrograms: ['choom'],
  });
  expect(await protectionPrefix(true, binFolderWith('choom'))).toEqual({
    commandPrefix: score,
    missingPrograms: ['prlimit'],
  });
  expect(await protectionPrefix(true, binFolderWith())).toEqual({
    commandPrefix: [],
    missingPrograms: ['prlimit', 'choom'],
  });
  expect(await protectionPrefix(false, binFolderWith('prlimit', 'choom'))).toEqual({
    commandPrefix: [],
    missingPrograms: [],
  });
});

test.skipIf(lacks('linux'))('prlimit and choom grant these rights, and run the next command', async () => {
  const { commandPrefix, missingPrograms } = await protectionPrefix(true, searchPath());
  // Changes that need no privileges: a higher OOM score and a lower memlock limit.
  const [file = '', ...rest] = [...commandPrefix, 'cat', '/proc/self/oom_score_adj', '/proc/self/limits'].map((word) =>
    word.replace('-900', '1000').replace('unlimited', '8192'),
  );
  const { stdout } = await promisify(execFile)(file, rest);
  expect(missingPrograms).toEqual([]);
  expect(stdout).toMatch(/^1000\n/);
  expect(stdout).toMatch(/Max locked memory +8192 +8192/);
});

test('the user is chosen once, from the range for services, and never one that exists', async () => {
  const keepers = join(folder, 'keepers');
  expect(knownKeeperUser(keepers)).toBeUndefined();
  const chosen = await Promise.all([keeperUser(keepers), keeperUser(keepers)]);
  expect(new Set([...chosen, await keeperUser(keepers), knownKeeperUser(keepers)]).size).toBe(1);
  expect(chosen[0]).toBeGreaterThanOrEqual(61_184);
  expect(chosen[0]).toBeLessThanOrEqual(65_519);
  chmodSync(join(keepers, 'user'), 0o666);
  expect(knownKeeperUser(keepers)).toBeUndefined();
  chmodSync(join(keepers, 'user'), 0o644);
  writeFileSync(join(keepers, 'user'), '0\n');
  expect(knownKeeperUser(keepers)).toBeUndefined();
});
