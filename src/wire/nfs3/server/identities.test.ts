import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { runAs, startOwnServer } from '#testing/own-nfs-server.ts';
import { accessRight, getattr } from '../procedures.ts';
import { createIdentities } from './identities.ts';

const file = { mode: 'guarded', set: { mode: 0o644 } } as const;

describe.skipIf(lacks('root'))('the user of a call', () => {
  test('owns the files it creates, with its own group or that of the directory', async () => {
    const own = await startOwnServer();
    const statOf = (name: string) => fs.lstatSync(join(own.directory, name));
    fs.chmodSync(own.directory, 0o777);
    const { nfs, root } = await own.mount(runAs(1001, 50));
    const { handle } = await nfs.mkdir(root, 'd', { mode: 0o750 });
    await nfs.create(root, 'f', file);
    await nfs.symlink(root, 'l', 'target', {});
    for (const name of ['d', 'f', 'l']) expect(statOf(name)).toMatchObject({ uid: 1001, gid: 1001 });
    expect(statOf('d').mode & 0o7777).toBe(0o750);
    await nfs.setattr(handle, { gid: 50, mode: 0o2770 });
    await nfs.mkdir(handle, 'sub', { mode: 0o755 });
    await nfs.create(handle, 'file', file);
    expect(statOf('d/sub')).toMatchObject({ uid: 1001, gid: 50 });
    expect(statOf('d/sub').mode & 0o7777).toBe(0o2755);
    expect(statOf('d/file')).toMatchObject({ uid: 1001, gid: 50 });
  });

  test('has exactly the rights of the mode', async () => {
    const own = await startOwnServer();
    const pathOf = (name: string): string => join(own.directory, name);
    fs.chmodSync(own.directory, 0o755);
    fs.mkdirSync(pathOf('private'), { mode: 0o700 });
    fs.writeFileSync(pathOf('secret'), 'secret', { mode: 0o600 });
    fs.writeFileSync(pathOf('group'), 'group', { mode: 0o640 });
    fs.chownSync(pathOf('group'), 0, 50);
    const { nfs, root } = await own.mount(runAs(1001, 50));
    const denied = { statusName: 'ACCES' };
    await expect(nfs.create(root, 'f', file)).rejects.toMatchObject(denied);
    await expect(nfs.mkdir(root, 'f', {})).rejects.toMatchObject(denied);
    await expect(nfs.remove(root, 'secret')).rejects.toMatchObject(denied);
    await expect(
      nfs.rename({ directory: root, name: 'secret' }, { directory: root, name: 'mine' }),
    ).rejects.toMatchObject(denied);
    const { handle: secret } = await nfs.lookup(root, 'secret');
    await expect(nfs.read(secret, 0, Buffer.alloc(9))).rejects.toMatchObject(denied);
    await expect(nfs.write(secret, 0, Buffer.from('x'), 0)).rejects.toMatchObject(denied);
    await expect(nfs.setattr(secret, { mode: 0o777 })).rejects.toMatchObject({ statusName: 'PERM' });
    await expect(nfs.link(secret, { directory: root, name: 'l' })).rejects.toMatchObject(denied);
    const { handle: privateFolder } = await nfs.lookup(root, 'private');
    await expect(nfs.lookup(privateFolder, 'x')).rejects.toMatchObject(denied);
    await expect(
      nfs.readdir({ directory: privateFolder, cookie: 0n, verifier: 0n, bytes: 4096 }),
    ).rejects.toMatchObject(denied);
    const { handle: group } = await nfs.lookup(root, 'group');
    expect((await nfs.read(group, 0, Buffer.alloc(9))).count).toBe(5);
    expect(await nfs.access(group, 63)).toBe(accessRight.read);
    expect(await nfs.access(secret, 63)).toBe(0);
    expect(fs.readFileSync(pathOf('secret'), 'latin1')).toBe('secret');
  });

  test('may read and write its own file after any change of the mode', async () => {
    const own = await startOwnServer();
    fs.chmodSync(own.directory, 0o777);
    const { nfs, root } = await own.mount(runAs(1001));
    const { handle } = await nfs.create(root, 'f', { mode: 'guarded', set: { mode: 0o000 } });
    await nfs.write(handle, 0, Buffer.from('mine'), 0);
    expect((await nfs.read(handle, 0, Buffer.alloc(9))).count).toBe(4);
    const other = await own.mount(runAs(1002));
    await expect(other.nfs.read(handle, 0, Buffer.alloc(9))).rejects.toMatchObject({ statusName: 'ACCES' });
  });

  test('clears the set-id bits of a file by writing to it', async () => {
    const own = await startOwnServer();
    const path = join(own.directory, 'p');
    for (const change of ['write', 'truncate'] as const) {
      fs.writeFileSync(path, 'x');
      fs.chmodSync(path, 0o6777);
      const { nfs, root } = await own.mount(runAs(1001));
      const { handle } = await nfs.lookup(root, 'p');
      if (change === 'write') await nfs.write(handle, 0, Buffer.from('evil'), 0);
      else await nfs.setattr(handle, { size: 0 });
      expect(fs.statSync(path).mode & 0o7777).toBe(0o777);
    }
  });

  test('may remove only its own files from a sticky directory', async () => {
    const own = await startOwnServer();
    fs.chmodSync(own.directory, 0o1777);
    const [one, other] = [await own.mount(runAs(1001)), await own.mount(runAs(1002))];
    await one.nfs.create(one.root, 'f', file);
    await expect(other.nfs.remove(other.root, 'f')).rejects.toMatchObject({ statusName: 'ACCES' });
    await other.nfs.create(other.root, 'g', file);
    await expect(
      other.nfs.rename({ directory: other.root, name: 'g' }, { directory: other.root, name: 'f' }),
    ).rejects.toMatchObject({ statusName: 'ACCES' });
    await one.nfs.remove(one.root, 'f');
  });

  test('is squashed if it is root (by default), if the option says so for all users, or if it sends no credentials', async () => {
    const own = await startOwnServer({ squash: 'root' });
    fs.chmodSync(own.directory, 0o777);
    const ownerOf = (name: string) => fs.statSync(join(own.directory, name)).uid;
    const ownerOfNewFile = async (name: string, options: Parameters<typeof own.mount>[0]): Promise<number> => {
      const { nfs, root } = await own.mount(options);
      await nfs.create(root, name, file);
      return ownerOf(name);
    };
    expect(await ownerOfNewFile('a', runAs(0))).toBe(65_534);
    expect(await ownerOfNewFile('b', runAs(1001))).toBe(1001);
    expect(await ownerOfNewFile('c', { identity: undefined })).toBe(65_534);
    expect(await ownerOfNewFile('d', runAs(0xffff_ffff))).toBe(65_534);
    const { nfs, root } = await own.mount(runAs(0));
    const { handle } = await nfs.lookup(root, 'b');
    await expect(nfs.setattr(handle, { uid: 0 })).rejects.toMatchObject({ statusName: 'PERM' });
    await expect(nfs.setattr(handle, { uid: 0xffff_ffff })).rejects.toMatchObject({ statusName: 'INVAL' });
    await own.restart({ squash: 'all', anonymous: { uid: 777, gid: 778 } });
    expect(await ownerOfNewFile('e', runAs(1001))).toBe(777);
    expect(fs.statSync(join(own.directory, 'e')).gid).toBe(778);
    await own.restart({ squash: 'none' });
    expect(await ownerOfNewFile('f', runAs(0))).toBe(0);
  });

  test('is mapped to another user in both directions if the administrator configured that', async () => {
    const own = await startOwnServer({ users: [{ client: 500, here: 1500 }], groups: [{ client: 500, here: 1600 }] });
    fs.chmodSync(own.directory, 0o777);
    const { nfs, root, rpc } = await own.mount(runAs(500));
    const { handle } = await nfs.create(root, 'f', file);
    expect(fs.statSync(join(own.directory, 'f'))).toMatchObject({ uid: 1500, gid: 1600 });
    expect(await rpc.call(getattr, handle)).toMatchObject({ uid: 500, gid: 500 });
    const other = await own.mount(runAs(0));
    await other.nfs.setattr(handle, { uid: 500, gid: 7 });
    expect(fs.statSync(join(own.directory, 'f'))).toMatchObject({ uid: 1500, gid: 7 });
  });
});

describe('a server that runs as an ordinary user', () => {
  const ordinaryUser = { uid: 1000, gid: 1000, groups: [27], isRoot: false };
  const identities = createIdentities({
    squash: 'none',
    anonymous: { uid: 1, gid: 1 },
    users: [],
    groups: [],
    serverUser: ordinaryUser,
  });
  test.each([0, 1000, 4242])('does everything as this user, also for calls of user %d', (uid) => {
    const caller = { address: '::1', port: 1, isEncrypted: false, ...runAs(uid) };
    expect(identities.credentialsOf(caller)).toEqual(ordinaryUser);
  });
});
