import { execFile } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { asCaller, mountNfs, type NfsMount } from '#testing/nfs-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';

const run = promisify(execFile);

/** Root and another user as remapped by an engine with user namespaces, and users of this machine. */
const callers = [
  ['root', 0],
  ['an ordinary user', 1001],
  ['the root of an engine that remaps users', 165_536],
  ['another user of it', 166_536],
] as const;
const runAs = async (uid: number, script: string, ...args: readonly string[]): Promise<string> => {
  const user = ['--reuid', `${uid}`, '--regid', `${uid}`, '--clear-groups'];
  return (await run('setpriv', [...user, 'sh', '-ec', script, 'sh', ...args])).stdout;
};
const serverUser = { ...asCaller, squash: 'all', uid: 1000, gid: 1000 } as const;
const truncate = `perl -e 'truncate($ARGV[0], 0) or die "$!"' "$1"`;

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'perl'))('a mount whose users are all one user to the server', () => {
  const exported = exportedByGanesha();
  let scratch: ScratchFolder;
  let mount: NfsMount;

  /** The owner on the server. */
  function createFile(name: string, content: string, mode: number, owner = 1000): void {
    writeFileSync(exported.on(name), content);
    chownSync(exported.on(name), owner, owner);
    chmodSync(exported.on(name), mode);
  }

  beforeEach(async () => {
    scratch = createScratchFolder();
    chmodSync(scratch.folder, 0o755);
    await exported.nfs.setattr(exported.directory, { uid: 1000, gid: 1000, mode: 0o700 });
    mount = await mountNfs(
      scratch.folder,
      { nfs: exported.nfs, root: exported.directory },
      { identity: serverUser, checks: 'server' },
    );
  });
  afterEach(async () => {
    expect(mount.faults).toEqual([]);
    await mount[Symbol.asyncDispose]();
    scratch[Symbol.dispose]();
  });

  test.each(callers)('%s may do everything that the server user may', async (_, uid) => {
    const script = `cd "$1"; umask 077
      mkdir d; echo 'echo it runs' > d/file; cat d/file; chmod 700 d/file; ./d/file
      test -r d/file; test -w d/file; test -x d/file; echo 'echo more' >> d/file; touch -d 2001-01-01 d/file
      ln d/file link; mv d/file d/moved; ls d; rm link`;
    expect(await runAs(uid, script, mount.at)).toBe('echo it runs\nit runs\nmoved\n');
    expect(statSync(exported.on('d/moved'))).toMatchObject({ uid: 1000, gid: 1000, mode: 0o100700, nlink: 1 });
    expect(readFileSync(exported.on('d/moved'), 'utf8')).toBe('echo it runs\necho more\n');
    await runAs(uid, `${truncate}; rm -r "$2"`, join(mount.at, 'd/moved'), join(mount.at, 'd'));
    expect(readdirSync(exported.on('.'))).toEqual([]);
  });

  test.each(callers)('%s may use what another user created', async (_, uid) => {
    await runAs(1002, 'umask 077; mkdir "$1/d"; echo text > "$1/d/file"', mount.at);
    expect(await runAs(uid, 'cat "$1/d/file"; echo more >> "$1/d/file"; chmod 640 "$1/d/file"', mount.at)).toBe(
      'text\n',
    );
    expect(readFileSync(exported.on('d/file'), 'utf8')).toBe('text\nmore\n');
  });

  const refusedScripts = {
    'read it': ['cat "$1"', 0o200],
    'append to it': ['echo x >> "$1"', 0o400],
    'overwrite it': ['echo x > "$1"', 0o400],
    'truncate it': [truncate, 0o400],
    'run it': ['"$1"', 0o600],
    'test whether it is readable': ['test -r "$1" || { echo Permission denied >&2; false; }', 0o200],
    'test whether it is writable': ['test -w "$1" || { echo Permission denied >&2; false; }', 0o400],
  } as const;

  describe.each(Object.entries(refusedScripts))('no user may %s if the server user may not', (_, [script, mode]) => {
    test.each(callers)('%s is refused on an own object', async (_caller, uid) => {
      createFile('own', 'data', mode);
      await expect(runAs(uid, script, join(mount.at, 'own'))).rejects.toThrow('Permission denied');
      expect(readFileSync(exported.on('own'), 'utf8')).toBe('data');
    });

    test.each(callers)("%s is refused on another's object", async (_caller, uid) => {
      createFile('other', 'data', 0o700, 1001);
      await expect(runAs(uid, script, join(mount.at, 'other'))).rejects.toThrow('Permission denied');
      expect(readFileSync(exported.on('other'), 'utf8')).toBe('data');
    });
  });

  test.each(callers)("%s may not enter another's directory or change an owner", async (_, uid) => {
    mkdirSync(exported.on('other'), { mode: 0o700 });
    createFile('own', 'data', 0o600);
    createFile('file', 'data', 0o644, 1001);
    for (const script of ['cd "$1/other"', 'ls "$1/other"', 'cat "$1/other/x"', 'echo x > "$1/other/x"'])
      await expect(runAs(uid, script, mount.at)).rejects.toThrow(/Permission denied|can't cd/);
    for (const script of ['chmod 666 "$1/file"', 'chown 1001 "$1/own"'])
      await expect(runAs(uid, script, mount.at)).rejects.toThrow(/not permitted/);
    expect(existsSync(exported.on('other/x'))).toBe(false);
    expect(statSync(exported.on('own')).uid).toBe(1000);
  });

  test('a program that is executable but not readable can be run', async () => {
    createFile('program', readFileSync('/bin/true', 'latin1'), 0o111);
    writeFileSync(exported.on('program'), readFileSync('/bin/true'));
    await runAs(165_536, '"$1"', join(mount.at, 'program'));
    await expect(runAs(165_536, 'cat "$1"', join(mount.at, 'program'))).rejects.toThrow('Permission denied');
  });

  test('rights removed by another client count at the next open', async () => {
    createFile('file', 'data', 0o600);
    expect(await runAs(165_536, 'cat "$1"', join(mount.at, 'file'))).toBe('data');
    const { handle } = await exported.nfs.lookup(exported.directory, 'file');
    await exported.nfs.setattr(handle, { mode: 0o200 });
    await expect(runAs(165_536, 'cat "$1"', join(mount.at, 'file'))).rejects.toThrow('Permission denied');
    await exported.nfs.setattr(handle, { mode: 0o600 });
    expect(await runAs(165_536, 'cat "$1"', join(mount.at, 'file'))).toBe('data');
  });

  test('the creator of a write-protected file writes to it', async () => {
    await runAs(165_536, 'umask 0777; echo written > "$1"', join(mount.at, 'file'));
    expect(readFileSync(exported.on('file'), 'utf8')).toBe('written\n');
  });

  test('no ACCESS call is made where the attributes permit the call', async () => {
    createFile('file', 'data', 0o600);
    const accessCalls = vi.spyOn(exported.nfs, 'access');
    await runAs(165_536, 'cat "$1/file"; echo x > "$1/file"; ls "$1"; cd "$1"', mount.at);
    expect(accessCalls).not.toHaveBeenCalled();
  });
});
