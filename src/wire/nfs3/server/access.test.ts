import type { BigIntStats } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { accessRight } from '../procedures.ts';
import {
  allowedMode,
  grantedAccess,
  hasPermission,
  modeAfterWrite,
  permission,
  requireDataPermission,
  requireRemoval,
  requireSetattr,
} from './access.ts';
import type { Credentials } from './identities.ts';

const user = (uid: number, ...groups: number[]): Credentials => ({ uid, gid: uid, groups, isRoot: false });
const root: Credentials = { uid: 0, gid: 0, groups: [], isRoot: true };
const file = (mode: number, uid: number, gid: number, isDirectory = false): BigIntStats =>
  ({
    mode: BigInt(mode),
    uid: BigInt(uid),
    gid: BigInt(gid),
    isDirectory: () => isDirectory,
    isFile: () => !isDirectory,
  }) as BigIntStats;
const statusOf = (run: () => void): number | undefined => {
  try {
    run();
    return undefined;
  } catch (cause) {
    return (cause as { status: number }).status;
  }
};

describe('the permission checks by mode', () => {
  test.each([
    ['the owner', 0o400, user(1), permission.read, true],
    ['the owner, whose bits are the only that count', 0o077, user(1), permission.read, false],
    ['the group', 0o040, user(2), permission.read, true],
    ['a further group', 0o040, user(9, 7, 2), permission.read, true],
    ['the group, whose bits are the only that count', 0o604, user(2), permission.read, false],
    ['others', 0o004, user(3), permission.read, true],
    ['others, to write', 0o004, user(3), permission.write, false],
    ['two at once', 0o006, user(3), permission.read | permission.write, true],
    ['root', 0o000, root, permission.read | permission.write, true],
    ['root, to execute a file without any execute bit', 0o666, root, permission.execute, false],
    ['root, to execute a file with an execute bit', 0o001, root, permission.execute, true],
  ])('%s', (_, mode, credentials, wanted, expected) => {
    expect(hasPermission(file(mode, 1, 2), credentials, wanted)).toBe(expected);
  });

  test('allow the owner to access the data always, and users with execute permission to read them', () => {
    expect(statusOf(() => requireDataPermission(file(0, 1, 2), user(1), permission.write))).toBeUndefined();
    expect(statusOf(() => requireDataPermission(file(0o001, 1, 2), user(3), permission.read))).toBeUndefined();
    expect(statusOf(() => requireDataPermission(file(0o001, 1, 2), user(3), permission.write))).toBe(13);
    expect(statusOf(() => requireDataPermission(file(0o440, 1, 2), user(3), permission.read))).toBe(13);
  });

  test('in a sticky directory allow removal only to the owner of the directory or of the entry', () => {
    const directory = file(0o1777, 1, 1, true);
    expect(statusOf(() => requireRemoval(directory, file(0o666, 5, 5), user(5)))).toBeUndefined();
    expect(statusOf(() => requireRemoval(directory, file(0o666, 5, 5), user(1)))).toBeUndefined();
    expect(statusOf(() => requireRemoval(directory, file(0o666, 5, 5), user(6)))).toBe(13);
    expect(statusOf(() => requireRemoval(file(0o777, 1, 1, true), file(0o666, 5, 5), user(6)))).toBeUndefined();
  });

  test('agree with the rights that ACCESS reports', () => {
    const { read, lookup, modify, extend, delete: remove, execute } = accessRight;
    const all = 63;
    expect(grantedAccess(file(0o751, 1, 2), user(1), all, false)).toBe(read | modify | extend | execute);
    expect(grantedAccess(file(0o751, 1, 2), user(2), all, false)).toBe(read | execute);
    expect(grantedAccess(file(0o751, 1, 2), user(3), all, false)).toBe(execute);
    expect(grantedAccess(file(0o751, 1, 2, true), user(1), all, false)).toBe(read | lookup | modify | extend | remove);
    expect(grantedAccess(file(0o777, 1, 2, true), user(3), all, true)).toBe(read | lookup);
    expect(grantedAccess(file(0o777, 1, 2), user(3), read, false)).toBe(read);
  });
});

describe('the permission checks for SETATTR', () => {
  const own = file(0o600, 1, 2);
  test.each([
    ['the owner the mode', { mode: 0o777 }, user(1), undefined],
    ['another the mode', { mode: 0o777 }, user(3), 1],
    ['no user but root sets the owner', { uid: 3 }, user(1), 1],
    ['the owner, to what it is', { uid: 1 }, user(1), undefined],
    ['root the owner', { uid: 3, gid: 3 }, root, undefined],
    ['the owner a group of his', { gid: 7 }, user(1, 7), undefined],
    ['the owner a group of others', { gid: 8 }, user(1, 7), 1],
    ['another the group', { gid: 7 }, user(3, 7), 1],
    ['the owner the times', { mtime: { seconds: 1, nanoseconds: 0 } }, user(1), undefined],
    ['another the times', { mtime: { seconds: 1, nanoseconds: 0 } }, user(3), 1],
    ['another "now", without permission to write', { mtime: 'now' as const }, user(3), 13],
    ['another the size', { size: 0 }, user(3), 13],
  ])('%s', (_, set, credentials, expected) => {
    expect(statusOf(() => requireSetattr(own, set, credentials))).toBe(expected);
  });

  test('allow every user with write permission to set the times to the current time', () => {
    expect(statusOf(() => requireSetattr(file(0o666, 1, 2), { mtime: 'now', atime: 'now' }, user(3)))).toBeUndefined();
  });

  test('clear the set-id bits when another user writes to the file', () => {
    expect(modeAfterWrite(file(0o4755, 1, 2), user(3))).toBe(0o755);
    expect(modeAfterWrite(file(0o2755, 1, 2), user(3))).toBe(0o755);
    // Without execution it means something else: locks that must be kept.
    expect(modeAfterWrite(file(0o2644, 1, 2), user(3))).toBeUndefined();
    expect(modeAfterWrite(file(0o4755, 1, 2), root)).toBeUndefined();
    expect(modeAfterWrite(file(0o755, 1, 2), user(3))).toBeUndefined();
  });

  test('keep the set-group-id bit only for members of the group, and for root', () => {
    expect(allowedMode(0o2755, 9, false, user(1))).toBe(0o755);
    expect(allowedMode(0o2755, 9, false, user(1, 9))).toBe(0o2755);
    expect(allowedMode(0o102755, 9, false, root)).toBe(0o2755);
  });
});
