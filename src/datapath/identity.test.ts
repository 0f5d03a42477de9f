import { execFile } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createGround, type Ground } from '#testing/ground.ts';
import { openExport } from '#testing/nfs-export.ts';
import { asCaller, mountNfs } from '#testing/nfs-mount.ts';
import type { Attributes } from '#wire/nfs3/structures.ts';
import { credential } from '#wire/rpc/message.ts';
import { createIdentities } from './identity.ts';

const run = promisify(execFile);

const object = (mode: number, uid: number, gid: number) => ({ mode, uid, gid }) as Attributes;
const sent = (uid: number, gid: number, ...groups: readonly number[]): Buffer =>
  credential({ uid, gid, groups, machine: 'stowage-test' });

describe('as whom calls are sent', () => {
  const { credential: of } = createIdentities(asCaller);
  const user = { uid: 1000, gid: 1000 };

  test('as the caller, with the group of what it is about where that group may do more than others', () => {
    expect(of(user)).toEqual(sent(1000, 1000));
    expect(of(user, object(0o664, 0, 2000))).toEqual(sent(1000, 1000, 2000));
    expect(of(user, object(0o770, 0, 2000), object(0o730, 0, 3000))).toEqual(sent(1000, 1000, 2000, 3000));
  });

  test('without it where it is of no use', () => {
    expect(of(user, object(0o644, 0, 2000))).toEqual(sent(1000, 1000));
    expect(of(user, object(0o660, 1000, 2000))).toEqual(sent(1000, 1000));
    expect(of(user, object(0o660, 0, 1000))).toEqual(sent(1000, 1000));
    expect(of({ uid: 0, gid: 0 }, object(0o660, 5, 2000))).toEqual(sent(0, 0));
    expect(of(user, undefined)).toEqual(sent(1000, 1000));
  });

  test("a squashed caller is the store's user, and nobody else", () => {
    const root = createIdentities({ ...asCaller, squash: 'root', uid: 7, gid: 8 });
    expect(root.credential({ uid: 0, gid: 0 })).toEqual(sent(7, 8));
    expect(root.credential(user)).toEqual(sent(1000, 1000));
    const all = createIdentities({ ...asCaller, squash: 'all', uid: 7, gid: 8 });
    expect(all.credential({ ...user, group: 5 })).toEqual(sent(7, 8));
  });

  test('of very many callers not all are remembered', () => {
    for (let uid = 1; uid < 5_000; uid++) expect(of({ uid, gid: uid })).toEqual(sent(uid, uid));
  });
});

/** As a user with groups. */
const as = (uid: number, groups: string, script: string, ...args: readonly string[]) =>
  run('setpriv', [
    ...['--reuid', `${uid}`, '--regid', `${uid}`, ...(groups === '' ? ['--clear-groups'] : ['--groups', groups])],
    ...['sh', '-ec', script, 'sh', ...args],
  ]);

describe.skipIf(needs('fuse', 'ganesha'))('users of a mount', () => {
  const it = exportedByGanesha();

  const mounted = async (ground: Ground) => {
    chmodSync(ground.folder, 0o755);
    return await mountNfs(ground.folder, { nfs: it.nfs, root: it.directory });
  };

  test('a group that the caller is in besides his own: reads, writes, makes, removes, gives', async () => {
    using ground = createGround();
    mkdirSync(it.on('shared'));
    chownSync(it.on('shared'), 0, 2000);
    chmodSync(it.on('shared'), 0o2770);
    writeFileSync(it.on('shared/file'), 'old\n');
    chownSync(it.on('shared/file'), 0, 2000);
    chmodSync(it.on('shared/file'), 0o660);
    await using mount = await mounted(ground);
    const shared = join(mount.at, 'shared');
    const script =
      'cat "$1/file"; echo more >> "$1/file"; echo new > "$1/new"; mkdir "$1/d"; mv "$1/new" "$1/d/moved"; ls -R "$1" >/dev/null';
    expect((await as(1000, '2000', script, shared)).stdout).toBe('old\n');
    expect(readFileSync(it.on('shared/file'), 'utf8')).toBe('old\nmore\n');
    expect(statSync(it.on('shared/d/moved'))).toMatchObject({ uid: 1000, gid: 2000 });
    await as(1000, '2000,3000', 'chgrp 3000 "$1/d/moved"; rm -r "$1/d/moved"', shared);
    for (const script of ['cat "$1/file"', 'echo x >> "$1/file"', 'touch "$1/new"', 'ls "$1"'])
      await expect(as(1001, '3000', script, shared)).rejects.toThrow('Permission denied');
    expect(mount.faults).toEqual([]);
  });

  test('a file of a group that may only read it', async () => {
    using ground = createGround();
    writeFileSync(it.on('file'), 'data');
    chownSync(it.on('file'), 1000, 2000);
    chmodSync(it.on('file'), 0o640);
    await using mount = await mounted(ground);
    const file = join(mount.at, 'file');
    expect((await as(1001, '2000', 'cat "$1"', file)).stdout).toBe('data');
    await expect(as(1001, '2000', 'echo x > "$1"', file)).rejects.toThrow('Permission denied');
    await expect(as(1001, '', 'cat "$1"', file)).rejects.toThrow('Permission denied');
    expect((await as(1000, '', 'cat "$1"; chmod 600 "$1"', file)).stdout).toBe('data');
    await expect(as(1001, '2000', 'chmod 644 "$1"', file)).rejects.toThrow('not permitted');
  });

  test('an open file is used with the rights of whoever opened it', async () => {
    using ground = createGround();
    writeFileSync(it.on('file'), '');
    chmodSync(it.on('file'), 0o600);
    await using mount = await mounted(ground);
    const script = 'exec 3>>"$1"; exec setpriv --reuid 1000 --regid 1000 --clear-groups sh -c "echo written >&3"';
    await run('sh', ['-ec', script, 'sh', join(mount.at, 'file')]);
    expect(readFileSync(it.on('file'), 'utf8')).toBe('written\n');
  });

  test('a file that its owner made read-only is still written by who made it', async () => {
    using ground = createGround();
    await it.nfs.setattr(it.directory, { mode: 0o777 });
    await using mount = await mounted(ground);
    await as(1000, '', 'umask 0777; echo written > "$1"', join(mount.at, 'file'));
    expect(readFileSync(it.on('file'), 'utf8')).toBe('written\n');
    expect(statSync(it.on('file'))).toMatchObject({ uid: 1000, gid: 1000, mode: 0o100000 });
  });

  async function squashing(ground: Ground) {
    const path = join(ground.folder, 'squashing');
    mkdirSync(path);
    chownSync(path, 1000, 1000);
    chmodSync(ground.folder, 0o755);
    const { signal } = ground.scope;
    const server = await startGanesha({ exports: [{ path, tag: 'squashing', squash: 'root' }], signal });
    return { server, path };
  }

  test('a server that does not trust root is told another user, if the store says so', async () => {
    using ground = createGround();
    const { server, path } = await squashing(ground);
    await using _ = server;
    using opened = await openExport(server, 'squashing');
    {
      await using mount = await mountNfs(`${ground.folder}/plain`, opened);
      await expect(run('touch', [join(mount.at, 'new')])).rejects.toThrow('Permission denied');
      expect(mount.faults).toEqual([]);
    }
    const identity = { ...asCaller, squash: 'root', uid: 1000, gid: 1000 } as const;
    await using mount = await mountNfs(`${ground.folder}/squashed`, opened, { identity });
    await run('touch', [join(mount.at, 'new')]);
    expect(statSync(join(path, 'new'))).toMatchObject({ uid: 1000, gid: 1000 });
  });

  test('a removed file is cleared away as whoever removed it, when it is closed by the kernel itself', async () => {
    using ground = createGround();
    const { server, path } = await squashing(ground);
    await using _ = server;
    using opened = await openExport(server, 'squashing');
    await using mount = await mountNfs(`${ground.folder}/plain`, opened);
    const script = 'exec 3>"$1/file"; rm "$1/file"; ls -A "$1"';
    expect((await as(1000, '', script, mount.at)).stdout).toMatch(/^\.nfs[0-9a-f]{24}\n$/);
    await expect.poll(() => readdirSync(path)).toEqual([]);
  });
});
