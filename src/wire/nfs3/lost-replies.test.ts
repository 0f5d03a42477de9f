import * as fs from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { type CuttingProxy, startProxy } from '#testing/cutting-proxy.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { rpcTo, user } from '#testing/nfs-export.ts';
import { createNfsClient, type NfsClient } from './client.ts';
import { create, link, mkdir, mknod, remove, rename, rmdir, setattr, symlink } from './procedures.ts';
import { nfsStatus } from './status.ts';
import { fileType } from './structures.ts';

const { EXIST, NOENT, NOT_SYNC } = nfsStatus;
const guarded = { mode: 'guarded', set: { mode: 0o640 } } as const;
const exclusive = { mode: 'exclusive', verifier: 0x0102_0304_0506_0708n } as const;

/** Ganesha keeps replies only for the connection of the call, so it executes a call that is resent on a new connection again. */
describe.skipIf(lacks('root', 'ganesha'))('after the reply to a call is lost', () => {
  const it = exportedByGanesha();

  async function connectThroughProxy(): Promise<{ readonly nfs: NfsClient; readonly proxy: CuttingProxy }> {
    const proxy = await startProxy({ host: it.server.host, port: it.server.nfsPort });
    const rpc = rpcTo(proxy.host, proxy.port, { identity: user(0) });
    onTestFinished(() => rpc.close());
    const nfs = createNfsClient(rpc, systemClock());
    await nfs.null();
    return { nfs, proxy };
  }

  /** Expects that the server executed the first copy of the call, and answered the second copy with this status. */
  const expectSentTwice = (proxy: CuttingProxy, second: number): void => {
    expect(proxy.statuses).toEqual([0, second]);
    expect(proxy.connections).toBe(2);
  };

  test('CREATE, guarded: returns the file that the first call created', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    proxy.cutReplyTo(create.number);
    const { handle } = await nfs.create(it.directory, 'file', guarded);
    expectSentTwice(proxy, EXIST);
    expect(await nfs.getattr(handle)).toMatchObject({ fileId: BigInt(fs.statSync(it.on('file')).ino), mode: 0o640 });
  });

  test('CREATE, guarded: does not take a file with content for ours', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    fs.writeFileSync(it.on('file'), 'of another client');
    proxy.cutReplyTo(create.number);
    await expect(nfs.create(it.directory, 'file', guarded)).rejects.toThrow('CREATE: NFS3ERR_EXIST');
    expect(proxy.statuses).toEqual([EXIST, EXIST]);
  });

  /** Replaces an exclusive CREATE on servers without it: an mtime that no other client sets. */
  const guardedWithMtime = {
    mode: 'guarded',
    set: { mode: 0o640, mtime: { seconds: 1_234_567, nanoseconds: 1000 } },
  } as const;

  test('CREATE, guarded, with an mtime: returns the file that the first call created', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    proxy.cutReplyTo(create.number);
    const { handle } = await nfs.create(it.directory, 'file', guardedWithMtime);
    expectSentTwice(proxy, EXIST);
    expect((await nfs.getattr(handle)).fileId).toBe(BigInt(fs.statSync(it.on('file')).ino));
  });

  test('CREATE, guarded, with an mtime: does not take an empty file of another client for ours', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    await it.nfs.create(it.directory, 'file', guarded);
    proxy.cutReplyTo(create.number);
    await expect(nfs.create(it.directory, 'file', guardedWithMtime)).rejects.toThrow('CREATE: NFS3ERR_EXIST');
    expect(proxy.statuses).toEqual([EXIST, EXIST]);
  });

  /** The data path marks new files in this way. */
  const setWithAtime = { mode: 0o640, atime: { seconds: 1_234_567, nanoseconds: 1000 } } as const;

  test('CREATE, guarded, with an atime: returns the file that the first call created', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    proxy.cutReplyTo(create.number);
    const { handle } = await nfs.create(it.directory, 'file', { mode: 'guarded', set: setWithAtime });
    expectSentTwice(proxy, EXIST);
    expect((await nfs.getattr(handle)).fileId).toBe(BigInt(fs.statSync(it.on('file')).ino));
  });

  test('CREATE, guarded, with an atime: does not take an empty file of another client for ours', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    await it.nfs.create(it.directory, 'file', guarded);
    proxy.cutReplyTo(create.number);
    const pendingCreate = nfs.create(it.directory, 'file', { mode: 'guarded', set: setWithAtime });
    await expect(pendingCreate).rejects.toThrow('CREATE: NFS3ERR_EXIST');
  });

  test('MKDIR with an atime: does not take a directory of another client for ours', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    await it.nfs.mkdir(it.directory, 'sub', {});
    proxy.cutReplyTo(mkdir.number);
    await expect(nfs.mkdir(it.directory, 'sub', setWithAtime)).rejects.toThrow('MKDIR: NFS3ERR_EXIST');
  });

  test('CREATE, exclusive: the server recognises the file of the first call', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    proxy.cutReplyTo(create.number);
    const { handle } = await nfs.create(it.directory, 'file', exclusive);
    expectSentTwice(proxy, 0);
    expect((await nfs.getattr(handle)).fileId).toBe(BigInt(fs.statSync(it.on('file')).ino));
  });

  test('CREATE, exclusive: never takes the file of another client for ours', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    await it.nfs.create(it.directory, 'file', { ...exclusive, verifier: 1n });
    proxy.cutReplyTo(create.number);
    await expect(nfs.create(it.directory, 'file', exclusive)).rejects.toThrow('CREATE: NFS3ERR_EXIST');
    expect(proxy.statuses).toEqual([EXIST, EXIST]);
  });

  test('MKDIR: returns the directory that the first call created', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    proxy.cutReplyTo(mkdir.number);
    const { handle, attributes } = await nfs.mkdir(it.directory, 'sub', { mode: 0o711 });
    expectSentTwice(proxy, EXIST);
    expect(attributes).toMatchObject({ type: fileType.directory, mode: 0o711 });
    expect((await nfs.getattr(handle)).fileId).toBe(BigInt(fs.statSync(it.on('sub')).ino));
  });

  test('MKDIR: reports an existing file of that name', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    fs.writeFileSync(it.on('sub'), '');
    proxy.cutReplyTo(mkdir.number);
    await expect(nfs.mkdir(it.directory, 'sub', {})).rejects.toThrow('MKDIR: NFS3ERR_EXIST');
    expect(proxy.statuses).toEqual([EXIST, EXIST]);
  });

  test('SYMLINK: returns the link that the first call created', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    proxy.cutReplyTo(symlink.number);
    const { handle } = await nfs.symlink(it.directory, 'link', 'some/where', {});
    expectSentTwice(proxy, EXIST);
    expect(await nfs.readlink(handle)).toBe('some/where');
  });

  test('SYMLINK: does not take a link with another target for ours', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    fs.symlinkSync('elsewhere', it.on('link'));
    proxy.cutReplyTo(symlink.number);
    await expect(nfs.symlink(it.directory, 'link', 'some/where', {})).rejects.toThrow('SYMLINK: NFS3ERR_EXIST');
    expect(proxy.statuses).toEqual([EXIST, EXIST]);
  });

  test('MKNOD: returns the pipe that the first call created', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    proxy.cutReplyTo(mknod.number);
    const { handle } = await nfs.mknod({ directory: it.directory, name: 'pipe', type: fileType.fifo, set: {} });
    expectSentTwice(proxy, EXIST);
    expect((await nfs.getattr(handle)).fileId).toBe(BigInt(fs.statSync(it.on('pipe')).ino));
  });

  test('REMOVE: succeeds if the first call removed the file', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    fs.writeFileSync(it.on('file'), '');
    proxy.cutReplyTo(remove.number);
    await nfs.remove(it.directory, 'file');
    expectSentTwice(proxy, NOENT);
    expect(fs.readdirSync(it.folder)).toEqual([]);
  });

  test('RMDIR: succeeds if the first call removed the directory', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    fs.mkdirSync(it.on('sub'));
    proxy.cutReplyTo(rmdir.number);
    await nfs.rmdir(it.directory, 'sub');
    expectSentTwice(proxy, NOENT);
    expect(fs.readdirSync(it.folder)).toEqual([]);
  });

  const renameFile = (nfs: NfsClient): Promise<unknown> =>
    nfs.rename({ directory: it.directory, name: 'from' }, { directory: it.directory, name: 'to' });

  test('RENAME: succeeds if the first call moved the file', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    fs.writeFileSync(it.on('from'), 'moved');
    proxy.cutReplyTo(rename.number);
    await renameFile(nfs);
    expectSentTwice(proxy, NOENT);
    expect(fs.readFileSync(it.on('to'), 'utf8')).toBe('moved');
  });

  test('RENAME: fails if the file never existed', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    proxy.cutReplyTo(rename.number);
    await expect(renameFile(nfs)).rejects.toThrow('RENAME: NFS3ERR_NOENT');
    expect(proxy.statuses).toEqual([NOENT, NOENT]);
  });

  test('LINK: succeeds if the new name is the same file', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    const { handle } = await nfs.create(it.directory, 'one', guarded);
    proxy.cutReplyTo(link.number);
    await nfs.link(handle, { directory: it.directory, name: 'two' });
    expectSentTwice(proxy, EXIST);
    expect(fs.statSync(it.on('two')).ino).toBe(fs.statSync(it.on('one')).ino);
  });

  test('LINK: reports another file of that name', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    const { handle } = await nfs.create(it.directory, 'one', guarded);
    fs.writeFileSync(it.on('two'), '');
    proxy.cutReplyTo(link.number);
    await expect(nfs.link(handle, { directory: it.directory, name: 'two' })).rejects.toThrow('LINK: NFS3ERR_EXIST');
    expect(proxy.statuses).toEqual([EXIST, EXIST]);
  });

  test('SETATTR with a guard: succeeds if the first call made the change that fails the guard', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    const { handle } = await nfs.create(it.directory, 'file', guarded);
    const { ctime: seconds, ctimeNs: nanoseconds } = await nfs.getattr(handle);
    proxy.cutReplyTo(setattr.number);
    const set = { mode: 0o600, uid: 77, size: 5, mtime: { seconds: 1_000_000_000, nanoseconds: 3 } };
    await nfs.setattr(handle, set, { ifChangedAt: { seconds, nanoseconds } });
    expectSentTwice(proxy, NOT_SYNC);
    expect(fs.statSync(it.on('file'))).toMatchObject({ uid: 77, size: 5 });
  });

  test('SETATTR with a guard: reports a change by another client', async () => {
    const { nfs, proxy } = await connectThroughProxy();
    const { handle } = await nfs.create(it.directory, 'file', guarded);
    const { ctime: seconds, ctimeNs: nanoseconds } = await nfs.getattr(handle);
    await it.nfs.setattr(handle, { mode: 0o444 });
    proxy.cutReplyTo(setattr.number);
    await expect(nfs.setattr(handle, { mode: 0o600 }, { ifChangedAt: { seconds, nanoseconds } })).rejects.toThrow(
      'SETATTR: NFS3ERR_NOT_SYNC',
    );
    expect(proxy.statuses).toEqual([NOT_SYNC, NOT_SYNC]);
    expect(fs.statSync(it.on('file')).mode & 0o777).toBe(0o444);
  });
});
