import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { openExport } from '#testing/nfs-export.ts';
import { asCaller, mountNfs } from '#testing/nfs-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { encodeCredential } from '#wire/rpc/message.ts';
import { access, createIdentities } from './identity.ts';

const run = promisify(execFile);

const rightsOf = (mode: number, uid: number, gid: number) => ({ mode, uid, gid });
const credentialFor = (uid: number, gid: number, ...groups: readonly number[]): Buffer =>
  encodeCredential({ uid, gid, groups, machine: 'stowage-test' });

describe('the credential of a call', () => {
  const { credential: credentialOf } = createIdentities(asCaller);
  const user = { uid: 1000, gid: 1000 };

  test("is the caller's, with the object's group where that group may do more than others", () => {
    expect(credentialOf(user, access.change)).toEqual(credentialFor(1000, 1000));
    expect(credentialOf(user, access.write, rightsOf(0o664, 0, 2000))).toEqual(credentialFor(1000, 1000, 2000));
    expect(credentialOf(user, access.change, rightsOf(0o770, 0, 2000), rightsOf(0o730, 0, 3000))).toEqual(
      credentialFor(1000, 1000, 2000, 3000),
    );
  });

  test("omits the object's group where it grants nothing", () => {
    expect(credentialOf(user, access.write, rightsOf(0o644, 0, 2000))).toEqual(credentialFor(1000, 1000));
    expect(credentialOf(user, access.write, rightsOf(0o660, 1000, 2000))).toEqual(credentialFor(1000, 1000));
    expect(credentialOf(user, access.write, rightsOf(0o660, 0, 1000))).toEqual(credentialFor(1000, 1000));
    expect(credentialOf({ uid: 0, gid: 0 }, access.write, rightsOf(0o660, 5, 2000))).toEqual(credentialFor(0, 0));
    expect(credentialOf(user, access.write, undefined)).toEqual(credentialFor(1000, 1000));
  });

  test("omits the object's group where others may do the same: the caller need not be a member", () => {
    expect(credentialOf(user, access.read, rightsOf(0o664, 0, 2000))).toEqual(credentialFor(1000, 1000));
    expect(credentialOf(user, access.list, rightsOf(0o775, 0, 2000))).toEqual(credentialFor(1000, 1000));
    expect(credentialOf(user, access.search, rightsOf(0o771, 0, 2000))).toEqual(credentialFor(1000, 1000));
    expect(credentialOf(user, access.none, rightsOf(0o770, 0, 2000))).toEqual(credentialFor(1000, 1000));
    // An execute-only program is also read.
    expect(credentialOf(user, access.read, rightsOf(0o710, 0, 2000))).toEqual(credentialFor(1000, 1000, 2000));
  });

  test("is the store's user for a squashed caller", () => {
    const root = createIdentities({ ...asCaller, squash: 'root', uid: 7, gid: 8 });
    const ofGroup = rightsOf(0o770, 0, 2000);
    expect(root.credential({ uid: 0, gid: 0 }, access.change, ofGroup)).toEqual(credentialFor(7, 8));
    expect(root.credential(user, access.change, ofGroup)).toEqual(credentialFor(1000, 1000, 2000));
    const sameResultForAll = createIdentities({ ...asCaller, squash: 'all', uid: 7, gid: 8 });
    expect(sameResultForAll.credential({ ...user, group: 5 }, access.change, ofGroup)).toEqual(credentialFor(7, 8));
  });

  test('is cached for a limited number of callers', () => {
    for (let uid = 1; uid < 5_000; uid++)
      expect(credentialOf({ uid, gid: uid }, access.none)).toEqual(credentialFor(uid, uid));
  });
});

/** Runs as a user with groups. */
const runAs = (uid: number, groups: string, script: string, ...args: readonly string[]) =>
  run('setpriv', [
    '--reuid',
    `${uid}`,
    '--regid',
    `${uid}`,
    ...(groups === '' ? ['--clear-groups'] : ['--groups', groups]),
    'sh',
    '-ec',
    script,
    'sh',
    ...args,
  ]);

describe.skipIf(lacks('fuse', 'ganesha', 'perl'))('users of a mount', () => {
  const exported = exportedByGanesha();

  const mountExported = async (scratch: ScratchFolder) => {
    chmodSync(scratch.folder, 0o755);
    return await mountNfs(scratch.folder, { nfs: exported.nfs, root: exported.directory });
  };

  test('members of a supplementary group read, write, create, remove and change groups', async () => {
    using scratch = createScratchFolder();
    mkdirSync(exported.on('shared'));
    chownSync(exported.on('shared'), 0, 2000);
    chmodSync(exported.on('shared'), 0o2770);
    writeFileSync(exported.on('shared/file'), 'old\n');
    chownSync(exported.on('shared/file'), 0, 2000);
    chmodSync(exported.on('shared/file'), 0o660);
    await using mount = await mountExported(scratch);
    const shared = join(mount.at, 'shared');
    const script =
      'cat "$1/file"; echo more >> "$1/file"; echo new > "$1/new"; mkdir "$1/d"; mv "$1/new" "$1/d/moved"; ls -R "$1" >/dev/null';
    expect((await runAs(1000, '2000', script, shared)).stdout).toBe('old\n');
    expect(readFileSync(exported.on('shared/file'), 'utf8')).toBe('old\nmore\n');
    expect(statSync(exported.on('shared/d/moved'))).toMatchObject({ uid: 1000, gid: 2000 });
    await runAs(1000, '2000,3000', 'chgrp 3000 "$1/d/moved"; rm -r "$1/d/moved"', shared);
    for (const script of ['cat "$1/file"', 'echo x >> "$1/file"', 'touch "$1/new"', 'ls "$1"'])
      await expect(runAs(1001, '3000', script, shared)).rejects.toThrow('Permission denied');
    expect(mount.faults).toEqual([]);
  });

  test('a group with read permission only may read a file', async () => {
    using scratch = createScratchFolder();
    writeFileSync(exported.on('file'), 'data');
    chownSync(exported.on('file'), 1000, 2000);
    chmodSync(exported.on('file'), 0o640);
    await using mount = await mountExported(scratch);
    const file = join(mount.at, 'file');
    expect((await runAs(1001, '2000', 'cat "$1"', file)).stdout).toBe('data');
    await expect(runAs(1001, '2000', 'echo x > "$1"', file)).rejects.toThrow('Permission denied');
    await expect(runAs(1001, '', 'cat "$1"', file)).rejects.toThrow('Permission denied');
    expect((await runAs(1000, '', 'cat "$1"; chmod 600 "$1"', file)).stdout).toBe('data');
    await expect(runAs(1001, '2000', 'chmod 644 "$1"', file)).rejects.toThrow('not permitted');
  });

  test('an open file is used with the rights of its opener', async () => {
    using scratch = createScratchFolder();
    writeFileSync(exported.on('file'), '');
    chmodSync(exported.on('file'), 0o600);
    await using mount = await mountExported(scratch);
    const script = 'exec 3>>"$1"; exec setpriv --reuid 1000 --regid 1000 --clear-groups sh -c "echo written >&3"';
    await run('sh', ['-ec', script, 'sh', join(mount.at, 'file')]);
    expect(readFileSync(exported.on('file'), 'utf8')).toBe('written\n');
  });

  test('the creator of a file still writes to it after making it read-only', async () => {
    using scratch = createScratchFolder();
    await exported.nfs.setattr(exported.directory, { mode: 0o777 });
    await using mount = await mountExported(scratch);
    await runAs(1000, '', 'umask 0777; echo written > "$1"', join(mount.at, 'file'));
    expect(readFileSync(exported.on('file'), 'utf8')).toBe('written\n');
    expect(statSync(exported.on('file'))).toMatchObject({ uid: 1000, gid: 1000, mode: 0o100000 });
  });

  describe('rights changed by another client before the kernel knows', () => {
    const longCache = { cacheMs: 600_000 };
    const fileScripts = {
      read: 'cat "$1"',
      append: 'echo x >> "$1"',
      truncate: `perl -e 'truncate($ARGV[0], 0) or die "$!"' "$1"`,
      touch: `perl -e 'utime(undef, undef, $ARGV[0]) or die "$!"' "$1"`,
    };
    const directoryScripts = {
      list: 'ls "$1"',
      look: 'cat "$1/other"',
      create: 'echo x > "$1/new"',
      mkdir: 'mkdir "$1/new"',
      symlink: 'ln -s target "$1/new"',
      link: 'ln "$1/file" "$1/new"',
      remove: 'rm -f "$1/file"',
      rename: 'mv "$1/file" "$1/new"',
    };

    /** The rights before and after the change. */
    interface Change {
      readonly mode: number;
      readonly uid?: number;
      readonly gid?: number;
      readonly becomes: { readonly mode?: number; readonly uid?: number; readonly gid?: number };
    }

    function createWithRights(path: string, kind: 'file' | 'directory', { mode, uid = 0, gid = 2000 }: Change): void {
      if (kind === 'directory') mkdirSync(path);
      for (const file of kind === 'file' ? [path] : [`${path}/file`, `${path}/other`]) writeFileSync(file, 'data');
      if (kind === 'directory') for (const file of ['file', 'other']) chmodSync(`${path}/${file}`, 0o666);
      chownSync(path, uid, gid);
      chmodSync(path, mode);
    }

    const mountExported = async (scratch: ScratchFolder) => {
      chmodSync(scratch.folder, 0o755);
      return await mountNfs(scratch.folder, { nfs: exported.nfs, root: exported.directory }, longCache);
    };

    const attempt = (groups: string, script: string, path: string): Promise<string> =>
      runAs(1000, groups, script, path).then(
        () => 'done',
        ({ stderr }: { stderr: string }) => /Permission denied|Stale file handle/.exec(stderr)?.[0] ?? stderr,
      );

    /** The result of each operation for a user who was permitted before, and of a retry. */
    async function runAllScripts(kind: 'file' | 'directory', change: Change, groups: string) {
      using scratch = createScratchFolder();
      const scripts: Readonly<Record<string, string>> = kind === 'file' ? fileScripts : directoryScripts;
      for (const name of Object.keys(scripts)) createWithRights(exported.on(name), kind, change);
      await using mount = await mountExported(scratch);
      const [first, retried]: readonly [Record<string, string>, Record<string, string>] = [{}, {}];
      for (const [name, script] of Object.entries(scripts)) {
        const path = join(mount.at, name);
        await runAs(1000, groups, kind === 'file' ? 'cat "$1"' : 'cat "$1/file"', path);
        // Through the server, because it has its own cache.
        const { handle } = await exported.nfs.lookup(exported.directory, name);
        await exported.nfs.setattr(handle, change.becomes);
        const found = await attempt(groups, script, path);
        first[name] = found;
        retried[name] = found === 'done' ? found : await attempt(groups, script, path);
      }
      expect(mount.faults).toEqual([]);
      return { first, again: retried };
    }

    const all = (scripts: Readonly<Record<string, string>>, how: string) =>
      Object.fromEntries(Object.keys(scripts).map((what) => [what, how]));
    /** For these, the kernel does not look again by itself. */
    const deniedOrStale = expect.stringMatching(/^(Permission denied|Stale file handle)$/);

    const lostRights: readonly (readonly [string, Change, string])[] = [
      ['the group', { mode: 0o660, becomes: { gid: 3000 } }, '2000'],
      ['the rights of others', { mode: 0o664, becomes: { mode: 0o660 } }, ''],
      ['the owner', { mode: 0o660, uid: 1000, becomes: { uid: 0 } }, ''],
    ];

    test.each(lostRights)('a user is refused after another client changed %s of a file', async (_, change, groups) => {
      const denied = all(fileScripts, 'Permission denied');
      expect(await runAllScripts('file', change, groups)).toEqual({ first: denied, again: denied });
    });

    test.each(lostRights)(
      'a user is refused after another client changed %s of a directory',
      async (_, change, groups) => {
        const wide = { ...change, mode: change.mode | 0o110 | ((change.mode & 4) >>> 2) };
        const { mode = 0o770 } = change.becomes;
        const becomes = { ...change.becomes, mode: mode | 0o110 };
        const denied = all(directoryScripts, 'Permission denied');
        expect(await runAllScripts('directory', { ...wide, becomes }, groups)).toEqual({
          first: { ...denied, mkdir: deniedOrStale, symlink: deniedOrStale, link: deniedOrStale },
          again: denied,
        });
      },
    );

    test("a user who is also in a file's new group continues", async () => {
      const done = all(fileScripts, 'done');
      const change = { mode: 0o660, becomes: { gid: 3000 } };
      expect(await runAllScripts('file', change, '2000,3000')).toEqual({ first: done, again: done });
    });

    test("a user who is also in a directory's new group continues, at the latest on retry", async () => {
      const done = all(directoryScripts, 'done');
      const change = { mode: 0o770, becomes: { gid: 3000 } };
      const { first, again } = await runAllScripts('directory', change, '2000,3000');
      expect(again).toEqual(done);
      expect(first).toMatchObject({ look: 'done', create: 'done', remove: 'done', rename: 'done' });
    });

    test('open files stay usable, and their written data are not lost', async () => {
      using scratch = createScratchFolder();
      createWithRights(exported.on('file'), 'file', { mode: 0o660, becomes: {} });
      await using mount = await mountExported(scratch);
      const { handle } = await exported.nfs.lookup(exported.directory, 'file');
      const script = 'exec 3<>"$1"; echo opened; read go; cat <&3; echo more >&3';
      const child = execFile('setpriv', [
        '--reuid',
        '1000',
        '--regid',
        '1000',
        '--groups',
        '2000',
        'sh',
        '-ec',
        script,
        'sh',
        join(mount.at, 'file'),
      ]);
      const output: string[] = [];
      child.stdout?.on('data', (text: string) => output.push(text));
      await expect.poll(() => output.join(''), { timeout: 10_000 }).toBe('opened\n');
      await exported.nfs.setattr(handle, { gid: 3000 });
      child.stdin?.end('go\n');
      const [status] = await once(child, 'close');
      expect([status, output.join('')]).toEqual([0, 'opened\ndata']);
      expect(readFileSync(exported.on('file'), 'utf8')).toBe('datamore\n');
    });

    test.skipIf(lacks('root'))('a successor of a killed data path applies the changed rights, too', async () => {
      await using mounts = await startKeeperMounts();
      chmodSync(mounts.folder, 0o755);
      for (const name of ['file', 'same']) createWithRights(exported.on(name), 'file', { mode: 0o660, becomes: {} });
      const mount = await mounts.mount(await sourceOf(exported.server, exported.folder), longCache);
      const read = (name: string) => runAs(1000, '2000', 'cat "$1"', mount.on(name));
      for (const name of ['file', 'same']) expect((await read(name)).stdout).toBe('data');
      const { handle } = await exported.nfs.lookup(exported.directory, 'file');
      await exported.nfs.setattr(handle, { gid: 3000 });
      await mounts.killDataPath();
      await expect(read('file')).rejects.toThrow('Permission denied');
      expect((await read('same')).stdout).toBe('data');
      await run('umount', [mount.at]);
    });
  });

  async function startSquashingServer(scratch: ScratchFolder) {
    const path = join(scratch.folder, 'squashing');
    mkdirSync(path);
    chownSync(path, 1000, 1000);
    chmodSync(scratch.folder, 0o755);
    const { signal } = scratch.scope;
    const server = await startGanesha({ exports: [{ path, tag: 'squashing', squash: 'root' }], signal });
    return { server, path };
  }

  test('a server that does not trust root gets another user if the store says so', async () => {
    using scratch = createScratchFolder();
    const { server, path } = await startSquashingServer(scratch);
    await using _ = server;
    using opened = await openExport(server, 'squashing');
    {
      await using mount = await mountNfs(`${scratch.folder}/plain`, opened);
      await expect(run('touch', [join(mount.at, 'new')])).rejects.toThrow('Permission denied');
      expect(mount.faults).toEqual([]);
    }
    const identity = { ...asCaller, squash: 'root', uid: 1000, gid: 1000 } as const;
    await using mount = await mountNfs(`${scratch.folder}/squashed`, opened, { identity });
    await run('touch', [join(mount.at, 'new')]);
    expect(statSync(join(path, 'new'))).toMatchObject({ uid: 1000, gid: 1000 });
  });

  test('a removed file is cleaned up as the user who removed it when the kernel closes it', async () => {
    using scratch = createScratchFolder();
    const { server, path } = await startSquashingServer(scratch);
    await using _ = server;
    using opened = await openExport(server, 'squashing');
    await using mount = await mountNfs(`${scratch.folder}/plain`, opened);
    const script = 'exec 3>"$1/file"; rm "$1/file"; ls -A "$1"';
    expect((await runAs(1000, '', script, mount.at)).stdout).toMatch(/^\.nfs[0-9a-f]{24}\n$/);
    await expect.poll(() => readdirSync(path)).toEqual([]);
  });
});
