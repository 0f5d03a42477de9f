import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { usedMemoryMib } from '#testing/memory.ts';
import { rpcTo, user } from '#testing/nfs-export.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { createNfsClient } from './client.ts';
import { createFileWriter, createWriteStream } from './file-writer.ts';
import { fileType, stability } from './structures.ts';

const exclusive = { mode: 'exclusive', verifier: 0x0a0b_0c0d_0e0f_0102n } as const;
const unknown = { name: 'RpcError', failure: 'deadline', maybeDone: true };
const mib = 1024 * 1024;

describe.skipIf(lacks('root', 'ganesha'))('a frozen server', () => {
  const it = exportedByGanesha();

  test('leaves the outcome of a MKDIR unknown after its deadline, and a repeated call shows it', async () => {
    await it.frozen(() =>
      expect(it.nfs.mkdir(it.directory, 'late', {}, { deadlineMs: 200 })).rejects.toMatchObject(unknown),
    );
    await expect.poll(() => fs.existsSync(it.on('late'))).toBe(true);
    await expect(it.nfs.mkdir(it.directory, 'late', {})).rejects.toThrow('MKDIR: NFS3ERR_EXIST');
    const { handle } = await it.nfs.lookup(it.directory, 'late');
    expect((await it.nfs.getattr(handle)).fileId).toBe(BigInt(fs.statSync(it.on('late')).ino));
  });

  test('accepts a repeated exclusive CREATE of the same client after the deadline, and of no other client', async () => {
    await it.frozen(() =>
      expect(it.nfs.create(it.directory, 'mine', exclusive, { deadlineMs: 200 })).rejects.toMatchObject(unknown),
    );
    // Ganesha executes both calls at the same time: for a moment the file has no verifier yet.
    const createAgain = (): Promise<unknown> =>
      it.nfs.create(it.directory, 'mine', exclusive).then(({ handle }) => it.nfs.getattr(handle), String);
    await expect.poll(createAgain).toMatchObject({ type: fileType.regular, size: 0 });
    expect(fs.readdirSync(it.folder)).toEqual(['mine']);
    await expect(it.nfs.create(it.directory, 'mine', { ...exclusive, verifier: 1n })).rejects.toThrow('NFS3ERR_EXIST');
  });

  test('sends replies after the deadline, which are not taken for replies of other calls', async () => {
    const proxy = await startProxy({ host: it.server.host, port: it.server.nfsPort });
    using rpc = rpcTo(proxy.host, proxy.port, { identity: user(0) });
    const nfs = createNfsClient(rpc, systemClock());
    const names = Array.from({ length: 40 }, (_, i) => `sub-${i}`);
    for (const name of names) fs.mkdirSync(it.on(name));
    const fileIdOf = (name: string) => nfs.lookup(it.directory, name).then(({ attributes }) => attributes?.fileId);
    await fileIdOf('sub-0');
    let callWithoutDeadline: Promise<unknown> | undefined;
    await it.frozen(async () => {
      const lateCalls = names.map((name) => nfs.lookup(it.directory, name, { deadlineMs: 150 }));
      callWithoutDeadline = fileIdOf('sub-7');
      const results = await Promise.allSettled(lateCalls);
      expect(results.map(({ status }) => status)).toEqual(names.map(() => 'rejected'));
    });
    const inode = (name: string): bigint => BigInt(fs.statSync(it.on(name)).ino);
    expect(await Promise.all(names.toReversed().map(fileIdOf))).toEqual(names.toReversed().map(inode));
    expect(await callWithoutDeadline).toBe(inode('sub-7'));
    // All replies came on the connection of the late replies.
    expect(proxy.connections).toBe(1);
    expect(rpc.pending).toBe(0);
  });

  test('does not delay calls to other servers', async () => {
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    await it.frozen(async () => {
      const pendingGetattr = it.nfs.getattr(it.directory, { deadlineMs: 500 });
      pendingGetattr.catch(() => undefined);
      for (let i = 0; i < 100; i++) await nfs.getattr(root, { deadlineMs: 5_000 });
      await expect(pendingGetattr).rejects.toMatchObject(unknown);
    });
  });

  test('has written data held in memory once, until the deadline', async () => {
    const { handle } = await it.nfs.create(it.directory, 'file', { mode: 'guarded', set: {} });
    using rpc = rpcTo(it.server.host, it.server.nfsPort, { identity: user(0) });
    const nfs = createNfsClient(rpc, systemClock());
    await nfs.null();
    const data = Buffer.alloc(mib, 1);
    const before = usedMemoryMib();
    await it.frozen(async () => {
      const writes = Array.from({ length: 64 }, (_, i) =>
        nfs.write(handle, i * mib, data, stability.unstable, { deadlineMs: 300 }),
      );
      const all = Promise.allSettled(writes);
      expect(usedMemoryMib() - before).toBeLessThan(8);
      for (const { status } of await all) expect(status).toBe('rejected');
      expect(rpc.pending).toBe(0);
      // The caller may reuse the memory now, and its new contents must not be sent to the server.
      data.fill(2);
    });
    for (let i = 0; i < 100; i++) await nfs.getattr(handle);
    expect(fs.readFileSync(it.on('file')).includes(2)).toBe(false);
    // The client reconnects if it dropped the connection because of the timeouts.
    expect(await nfs.write(handle, 0, data, stability.fileSync)).toMatchObject({ count: mib });
  });
});

describe.skipIf(lacks('root', 'ganesha'))('a server that is killed and restarts', () => {
  const it = exportedByGanesha();

  /** Ganesha's verifier is its start time in seconds, so this waits for the next second. */
  async function restartServer(meanwhile: () => void): Promise<void> {
    await it.server.kill();
    const killedIn = Math.floor(Date.now() / 1000);
    meanwhile();
    await expect.poll(() => Math.floor(Date.now() / 1000), { timeout: 5000 }).toBeGreaterThan(killedIn);
    await it.server.restart();
  }

  test('gets the data that it lost before a COMMIT again', async () => {
    const { handle } = await it.nfs.create(it.directory, 'file', { mode: 'guarded', set: {} });
    const data = randomBytes(12 * mib + 5);
    const writer = createFileWriter(it.nfs, handle, { atOnce: 4 });
    await writer.write(0, data.subarray(0, 6 * mib));
    // Some WRITEs were answered, others are in flight.
    await expect.poll(() => fs.statSync(it.on('file')).size).toBeGreaterThan(mib);
    // Simulates a power failure, in which the kernel would lose the data, too.
    const restarting = restartServer(() => fs.truncateSync(it.on('file')));
    await writer.write(6 * mib, data.subarray(6 * mib));
    await restarting;
    await writer.flush();
    expect(fs.readFileSync(it.on('file')).equals(data)).toBe(true);
  });

  test('has all data when a stream is closed', async () => {
    const { handle } = await it.nfs.create(it.directory, 'file', { mode: 'guarded', set: {} });
    const data = randomBytes(4 * mib);
    const stream = createWriteStream(it.nfs, handle);
    onTestFinished(() => void stream.destroy());
    for (let i = 0; i < 3; i++) await new Promise((done) => stream.write(data.subarray(i * mib, (i + 1) * mib), done));
    await expect.poll(() => fs.statSync(it.on('file')).size).toBe(3 * mib);
    await restartServer(() => fs.truncateSync(it.on('file')));
    await new Promise<void>((done) => stream.end(data.subarray(3 * mib), () => done()));
    expect(fs.readFileSync(it.on('file')).equals(data)).toBe(true);
  });

  test('answers the calls that were pending when it was killed', async () => {
    await it.server.freeze();
    const pendingMkdir = it.nfs.mkdir(it.directory, 'sub', { mode: 0o700 });
    const pendingSetattr = it.nfs.setattr(it.directory, { mode: 0o711 });
    await Promise.race([pendingMkdir, pendingSetattr, delay(50)]);
    await it.server.restart();
    const { attributes } = await pendingMkdir;
    await pendingSetattr;
    expect(attributes).toMatchObject({ type: fileType.directory, mode: 0o700 });
    expect(fs.statSync(it.folder).mode & 0o777).toBe(0o711);
  });
});
