import * as fs from 'node:fs';
import { mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { type Mounted, type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import type { NfsClient } from '../client.ts';
import { createFileWriter } from '../file-writer.ts';
import { listDirectory } from '../listing.ts';
import { accessRight, create, getattr, lookup, mkdir, remove, rename } from '../procedures.ts';
import { type FileHandle, fileType, nameOf, stability } from '../structures.ts';
import { createNfsServer } from './server.ts';

interface MountedServer extends Mounted {
  readonly own: OwnServer;
  readonly pathOf: (name: string) => string;
}

async function startMounted(...options: Parameters<typeof startOwnServer>): Promise<MountedServer> {
  const own = await startOwnServer(...options);
  return { ...(await own.mount()), own, pathOf: (name) => join(own.directory, name) };
}

const file = { mode: 'guarded', set: { mode: 0o644 } } as const;

async function readContent(nfs: NfsClient, handle: FileHandle, offset = 0, length = 1024 * 1024): Promise<Buffer> {
  const into = Buffer.alloc(length);
  const { count } = await nfs.read(handle, offset, into);
  return into.subarray(0, count);
}

async function listNames(nfs: NfsClient, directory: FileHandle, bytes?: number): Promise<string[]> {
  const all: string[] = [];
  for await (const page of listDirectory(nfs, directory, bytes === undefined ? {} : { bytes }))
    all.push(...page.map((entry) => Buffer.from(nameOf(entry) as string).toString('latin1')));
  return all.sort();
}

describe.skipIf(lacks('linux'))('files', () => {
  test('are created, written, read and removed on the disk', async () => {
    const { nfs, root, pathOf, own } = await startMounted();
    const { handle, attributes } = await nfs.create(root, 'a', file);
    expect(attributes).toMatchObject({ type: fileType.regular, mode: 0o644, size: 0 });
    expect(await nfs.write(handle, 3, Buffer.from('hello'), stability.fileSync)).toMatchObject({
      count: 5,
      committed: stability.fileSync,
      change: { after: { size: 8 } },
    });
    expect(readFileSync(pathOf('a'), 'latin1')).toBe('\0\0\0hello');
    expect(await readContent(nfs, handle)).toEqual(Buffer.from('\0\0\0hello'));
    expect(await nfs.read(handle, 5, Buffer.alloc(2))).toMatchObject({ count: 2, isEnd: false });
    expect(await nfs.read(handle, 6, Buffer.alloc(2))).toMatchObject({ count: 2, isEnd: true });
    expect(await nfs.read(handle, 600, Buffer.alloc(2))).toMatchObject({ count: 0, isEnd: true });
    await nfs.remove(root, 'a');
    expect(readdirSync(own.directory)).toEqual([]);
    await expect(nfs.getattr(handle)).rejects.toMatchObject({ statusName: 'STALE' });
    await expect(nfs.remove(root, 'a')).rejects.toMatchObject({ statusName: 'NOENT' });
    expect(own.errors).toEqual([]);
  });

  test('large ones are written and read completely, in chunks of any size', async () => {
    const { nfs, root, pathOf } = await startMounted();
    const { handle } = await nfs.create(root, 'large', file);
    const data = Buffer.alloc(5 * 1024 * 1024 + 77, 'abcdefghijklm');
    const writer = createFileWriter(nfs, handle);
    await writer.write(0, data);
    await writer.flush();
    expect(readFileSync(pathOf('large')).equals(data)).toBe(true);
    const offsets = Array.from({ length: 6 }, (_, i) => i * 1024 * 1024);
    const pieces = await Promise.all(offsets.map((offset) => readContent(nfs, handle, offset)));
    expect(Buffer.concat(pieces).equals(data)).toBe(true);
  });

  test('are read in another thread if the disk is slow, and closed only after that', async () => {
    const { nfs, root, own, pathOf } = await startMounted({ limits: { slowReadMs: -1e9, descriptors: 1 } });
    const size = 100_000;
    for (let i = 0; i < 40; i++) writeFileSync(pathOf(`f${i}`), Buffer.alloc(size, i));
    const handles = await Promise.all(Array.from({ length: 40 }, (_, i) => nfs.lookup(root, `f${i}`)));
    const read = handles.map(async ({ handle }, i) => (await readContent(nfs, handle)).equals(Buffer.alloc(size, i)));
    // Reads that began before these removals still return the files' contents.
    for (let i = 0; i < 40; i += 2) await nfs.remove(root, `f${i}`);
    expect(await Promise.all(read)).toEqual(handles.map(() => true));
    expect(own.errors).toEqual([]);
  });

  test('show changes by other programs immediately', async () => {
    const { nfs, root, pathOf } = await startMounted();
    writeFileSync(pathOf('b'), 'one');
    const { handle } = await nfs.lookup(root, 'b');
    expect((await readContent(nfs, handle)).toString()).toBe('one');
    fs.appendFileSync(pathOf('b'), ' two');
    expect((await readContent(nfs, handle)).toString()).toBe('one two');
    fs.renameSync(pathOf('b'), pathOf('c'));
    expect((await nfs.getattr(handle)).size).toBe(7);
    fs.unlinkSync(pathOf('c'));
    await expect(nfs.getattr(handle)).rejects.toMatchObject({ statusName: 'STALE' });
    await expect(nfs.read(handle, 0, Buffer.alloc(1))).rejects.toMatchObject({ statusName: 'STALE' });
  });

  test('a handle still refers to its file after another file takes over the file’s name', async () => {
    const { nfs, root, pathOf } = await startMounted();
    writeFileSync(pathOf('a'), 'first');
    const { handle } = await nfs.lookup(root, 'a');
    fs.renameSync(pathOf('a'), pathOf('b'));
    writeFileSync(pathOf('a'), 'the second');
    expect((await nfs.getattr(handle)).size).toBe(5);
    fs.renameSync(pathOf('a'), pathOf('c'));
    fs.renameSync(pathOf('b'), pathOf('a'));
    fs.renameSync(pathOf('c'), pathOf('b'));
    await nfs.setattr(handle, { size: 1 });
    expect([readFileSync(pathOf('a'), 'latin1'), readFileSync(pathOf('b'), 'latin1')]).toEqual(['f', 'the second']);
  });

  test('SETATTR sets attributes, with times exact to a microsecond, and respects the guard', async () => {
    const { nfs, root, pathOf } = await startMounted();
    const { handle } = await nfs.create(root, 'f', file);
    await nfs.write(handle, 0, Buffer.from('0123456789'), stability.unstable);
    await nfs.setattr(handle, { size: 4, mode: 0o640, mtime: { seconds: 1_700_000_000, nanoseconds: 123_456_789 } });
    const stats = statSync(pathOf('f'), { bigint: true });
    expect(stats.size).toBe(4n);
    expect(Number(stats.mode) & 0o7777).toBe(0o640);
    expect(stats.mtimeNs / 1000n).toBe(1_700_000_000_123_456n);
    await nfs.setattr(handle, { atime: { seconds: 77, nanoseconds: 0 } });
    expect(statSync(pathOf('f'), { bigint: true })).toMatchObject({ atimeNs: 77_000_000_000n, mtimeNs: stats.mtimeNs });
    await nfs.setattr(handle, { mtime: 'now' });
    expect(Math.abs(statSync(pathOf('f')).mtimeMs - Date.now())).toBeLessThan(60_000);
    const { ctime, ctimeNs } = await nfs.getattr(handle);
    const wrong = { ifChangedAt: { seconds: ctime - 1, nanoseconds: ctimeNs } };
    await expect(nfs.setattr(handle, { mode: 0o600 }, wrong)).rejects.toMatchObject({ statusName: 'NOT_SYNC' });
    await nfs.setattr(handle, { mode: 0o600 }, { ifChangedAt: { seconds: ctime, nanoseconds: ctimeNs } });
    expect(statSync(pathOf('f')).mode & 0o777).toBe(0o600);
    await expect(nfs.setattr(root, { size: 0 })).rejects.toMatchObject({ statusName: 'ISDIR' });
  });

  test('CREATE supports the modes guarded, unchecked and exclusive', async () => {
    const { nfs, root, pathOf } = await startMounted();
    writeFileSync(pathOf('there'), 'content');
    await expect(nfs.create(root, 'there', file)).rejects.toMatchObject({ statusName: 'EXIST' });
    await nfs.create(root, 'there', { mode: 'unchecked', set: { mode: 0o600 } });
    expect(readFileSync(pathOf('there'), 'latin1')).toBe('content');
    await nfs.create(root, 'there', { mode: 'unchecked', set: { size: 0 } });
    expect(readFileSync(pathOf('there'), 'latin1')).toBe('');
    const first = await nfs.create(root, 'mine', { mode: 'exclusive', verifier: 0xdead_beef_cafe_f00dn });
    const resentReply = await nfs.create(root, 'mine', { mode: 'exclusive', verifier: 0xdead_beef_cafe_f00dn });
    expect(resentReply.handle).toEqual(first.handle);
    await expect(nfs.create(root, 'mine', { mode: 'exclusive', verifier: 1n })).rejects.toMatchObject({
      statusName: 'EXIST',
    });
    mkdirSync(pathOf('directory'));
    await expect(nfs.create(root, 'directory', { mode: 'unchecked', set: {} })).rejects.toMatchObject({
      statusName: 'EXIST',
    });
    // The umask of the server does not change the requested mode.
    await nfs.create(root, 'open', { mode: 'guarded', set: { mode: 0o666 } });
    expect(statSync(pathOf('open')).mode & 0o7777).toBe(0o666);
  });

  test('an invalid size, offset or kind of file is refused', async () => {
    const { nfs, root, pathOf } = await startMounted();
    mkdirSync(pathOf('d'));
    const { handle: directory } = await nfs.lookup(root, 'd');
    await expect(nfs.read(directory, 0, Buffer.alloc(1))).rejects.toMatchObject({ statusName: 'ISDIR' });
    await expect(nfs.readlink(directory)).rejects.toMatchObject({ statusName: 'INVAL' });
    const { handle } = await nfs.create(root, 'f', file);
    await expect(nfs.lookup(handle, 'x')).rejects.toMatchObject({ statusName: 'NOTDIR' });
    await expect(nfs.rmdir(root, 'f')).rejects.toMatchObject({ statusName: 'NOTDIR' });
    await expect(nfs.remove(root, 'd')).rejects.toMatchObject({ statusName: 'ISDIR' });
    await expect(nfs.mknod({ directory: root, name: 'pipe', type: fileType.fifo, set: {} })).rejects.toMatchObject({
      statusName: 'NOTSUPP',
    });
    await expect(nfs.mknod({ directory: root, name: 'pipe', type: 99, set: {} })).rejects.toMatchObject({
      statusName: 'BADTYPE',
    });
  });
});

describe.skipIf(lacks('linux'))('names', () => {
  test('refer to directories and links, and can be renamed', async () => {
    const { nfs, root, pathOf, own } = await startMounted();
    const { handle: d } = await nfs.mkdir(root, 'd', { mode: 0o777 });
    expect(statSync(pathOf('d')).mode & 0o7777).toBe(0o777);
    const { handle: f } = await nfs.create(d, 'f', file);
    await nfs.link(f, { directory: root, name: 'g' });
    expect(statSync(pathOf('g')).ino).toBe(statSync(pathOf('d/f')).ino);
    await nfs.rename({ directory: d, name: 'f' }, { directory: root, name: 'h' });
    expect(readdirSync(own.directory).sort()).toEqual(['d', 'g', 'h']);
    expect((await nfs.getattr(f)).links).toBe(2);
    // If both names refer to the same file, both stay.
    await nfs.rename({ directory: root, name: 'g' }, { directory: root, name: 'h' });
    expect(readdirSync(own.directory).sort()).toEqual(['d', 'g', 'h']);
    await nfs.remove(root, 'h');
    expect((await nfs.getattr(f)).links).toBe(1);
    await nfs.create(d, 'in-the-way', file);
    await expect(nfs.rmdir(root, 'd')).rejects.toMatchObject({ statusName: 'NOTEMPTY' });
    await expect(
      nfs.rename({ directory: root, name: 'd' }, { directory: d, name: 'into-itself' }),
    ).rejects.toMatchObject({ statusName: 'INVAL' });
    await nfs.remove(d, 'in-the-way');
    await nfs.rmdir(root, 'd');
    await expect(nfs.create(d, 'x', file)).rejects.toMatchObject({ statusName: 'STALE' });
    await expect(nfs.mkdir(root, 'g', {})).rejects.toMatchObject({ statusName: 'EXIST' });
    await expect(nfs.link(root, { directory: root, name: 'no' })).rejects.toMatchObject({ statusName: 'ISDIR' });
  });

  test('a renamed file replaces another one, which is then stale', async () => {
    const { nfs, root } = await startMounted();
    const [a, b] = [await nfs.create(root, 'a', file), await nfs.create(root, 'b', file)];
    await nfs.rename({ directory: root, name: 'a' }, { directory: root, name: 'b' });
    await expect(nfs.getattr(b.handle)).rejects.toMatchObject({ statusName: 'STALE' });
    expect((await nfs.lookup(root, 'b')).handle).toEqual(a.handle);
  });

  test('are any bytes, up to 255', async () => {
    const { nfs, root, own } = await startMounted();
    const notUtf8 = Buffer.from([0xff, 0x20, 0xc3, 0x28, 0x0a]);
    const long = Buffer.alloc(255, 0xe4);
    for (const name of [notUtf8, long]) {
      const { handle } = await nfs.create(root, name, file);
      expect((await nfs.lookup(root, name)).handle).toEqual(handle);
    }
    expect(await listNames(nfs, root)).toEqual([notUtf8.toString('latin1'), long.toString('latin1')].sort());
    const onDisk = readdirSync(own.directory, { encoding: 'buffer' }).map((name) => name.toString('latin1'));
    expect(onDisk.sort()).toEqual([notUtf8.toString('latin1'), long.toString('latin1')].sort());
    await nfs.rename({ directory: root, name: notUtf8 }, { directory: root, name: 'ä' });
    expect(readdirSync(own.directory)).toContain('ä');
  });

  test('that are invalid are refused, each with its own status', async () => {
    const { rpc, root } = await startMounted();
    const lookupName = (name: string) => rpc.call(lookup, { directory: root, name });
    await expect(lookupName('x'.repeat(256))).rejects.toMatchObject({ statusName: 'NAMETOOLONG' });
    await expect(lookupName('')).rejects.toMatchObject({ statusName: 'INVAL' });
    await expect(lookupName('a/b')).rejects.toMatchObject({ statusName: 'INVAL' });
    await expect(lookupName('a\0b')).rejects.toMatchObject({ statusName: 'INVAL' });
    const makeDirectory = (name: string) => rpc.call(mkdir, { directory: root, name, set: {} });
    await expect(makeDirectory('..')).rejects.toMatchObject({ statusName: 'EXIST' });
    await expect(makeDirectory('../x')).rejects.toMatchObject({ statusName: 'INVAL' });
    await expect(rpc.call(remove, { directory: root, name: '..' })).rejects.toMatchObject({ statusName: 'INVAL' });
    await expect(
      rpc.call(rename, { from: { directory: root, name: '.' }, to: { directory: root, name: 'x' } }),
    ).rejects.toMatchObject({ statusName: 'INVAL' });
  });

  test('"." and ".." are resolved within the export', async () => {
    const { rpc, nfs, root } = await startMounted();
    const { handle: d } = await nfs.mkdir(root, 'd', {});
    expect((await rpc.call(lookup, { directory: d, name: '.' })).handle).toEqual(d);
    expect((await rpc.call(lookup, { directory: d, name: '..' })).handle).toEqual(root);
    expect((await rpc.call(lookup, { directory: root, name: '..' })).handle).toEqual(root);
  });

  test('symbolic links are returned, never followed', async () => {
    const { nfs, root, pathOf, own } = await startMounted();
    writeFileSync(join(own.outside, 'secret'), 'secret');
    const { attributes } = await nfs.symlink(root, 'l', own.outside, {});
    expect(attributes).toMatchObject({ type: fileType.link });
    expect(fs.readlinkSync(pathOf('l'))).toBe(own.outside);
    const { handle } = await nfs.lookup(root, 'l');
    expect(await nfs.readlink(handle)).toBe(own.outside);
    await expect(nfs.lookup(handle, 'secret')).rejects.toMatchObject({ statusName: 'NOTDIR' });
    symlinkSync(join(own.outside, 'secret'), pathOf('s'));
    const { handle: s } = await nfs.lookup(root, 's');
    await expect(nfs.read(s, 0, Buffer.alloc(9))).rejects.toMatchObject({ statusName: 'INVAL' });
    await expect(nfs.write(s, 0, Buffer.from('x'), 0)).rejects.toMatchObject({ statusName: 'INVAL' });
    await expect(nfs.setattr(s, { size: 0 })).rejects.toMatchObject({ statusName: 'INVAL' });
    await nfs.setattr(s, { mtime: { seconds: 5, nanoseconds: 0 }, mode: 0o777 });
    await nfs.create(root, 's', { mode: 'unchecked', set: { size: 0 } }).catch(() => undefined);
    expect(readFileSync(join(own.outside, 'secret'), 'latin1')).toBe('secret');
    expect(statSync(join(own.outside, 'secret')).mtimeMs).toBeGreaterThan(10_000);
  });
});

describe.skipIf(lacks('linux'))('the server', () => {
  test('reports sizes, limits and rights', async () => {
    const { nfs, root, own } = await startMounted();
    const [info, conf, stat] = [await nfs.fsinfo(root), await nfs.pathconf(root), await nfs.fsstat(root)];
    expect(info).toMatchObject({ maxRead: 1024 * 1024, maxWrite: 1024 * 1024, properties: 0x1b });
    expect(conf).toMatchObject({ maxName: 255, refusesLongNames: true, chownRestricted: true, ignoresCase: false });
    const fileSystem = fs.statfsSync(own.directory, { bigint: true });
    expect(stat.totalBytes).toBe(fileSystem.blocks * fileSystem.bsize);
    expect(stat.availableBytes).toBeGreaterThan(0n);
    expect(await nfs.access(root, 63)).toBe(63 & ~accessRight.execute);
  });

  test('refuses every change of a read-only export', async () => {
    const { nfs, root, pathOf, own } = await startMounted({ readOnly: true });
    writeFileSync(pathOf('f'), 'x');
    const { handle } = await nfs.lookup(root, 'f');
    expect((await readContent(nfs, handle)).toString()).toBe('x');
    const changes = [
      nfs.write(handle, 0, Buffer.from('y'), 0),
      nfs.setattr(handle, { mode: 0o777 }),
      nfs.create(root, 'n', file),
      nfs.create(root, 'f', { mode: 'unchecked', set: { size: 0 } }),
      nfs.mkdir(root, 'n', {}),
      nfs.symlink(root, 'n', 'x', {}),
      nfs.remove(root, 'f'),
      nfs.rmdir(root, 'f'),
      nfs.rename({ directory: root, name: 'f' }, { directory: root, name: 'g' }),
      nfs.link(handle, { directory: root, name: 'g' }),
    ];
    for (const change of changes) await expect(change).rejects.toMatchObject({ statusName: 'ROFS' });
    expect(await nfs.access(handle, 63)).toBe(accessRight.read);
    expect(readdirSync(own.directory)).toEqual(['f']);
  });

  test('refuses a state folder that is inside the export, or damaged', async () => {
    const own = await startOwnServer();
    const serverOptions = { clock: systemClock(), directory: own.directory, port: 0 };
    await expect(createNfsServer({ ...serverOptions, state: join(own.directory, 'state') })).rejects.toThrow(
      `the state folder ${join(own.directory, 'state')} lies in ${own.directory}, which is exported`,
    );
    const state = join(own.outside, 'state');
    mkdirSync(state);
    for (const [text, message] of [
      ['{', 'is not the state of an NFS server; remove it, and clients will have to remount'],
      ['{"version":1,"key":"AAAA"}', 'is not the state of an NFS server'],
      ['{"version":2}', 'was written by a newer version of this program (format 2)'],
    ] as const) {
      writeFileSync(join(state, 'nfs-server.json'), text);
      await expect(createNfsServer({ ...serverOptions, state })).rejects.toThrow(message);
    }
  });

  test('fails if its port is in use, and leaves no descriptor open', async () => {
    const own = await startOwnServer();
    const descriptors = (): number => readdirSync('/proc/self/fd').length;
    const before = descriptors();
    const serverOptions = { clock: systemClock(), directory: own.directory, state: join(own.outside, 'state') };
    await expect(createNfsServer({ ...serverOptions, port: own.server.port })).rejects.toMatchObject({
      code: 'EADDRINUSE',
    });
    expect(descriptors()).toBe(before);
  });
});

describe.skipIf(lacks('linux'))('a call that arrives twice', () => {
  test('under the same xid is executed once, also after the connection broke', async () => {
    const { root, own, pathOf } = await startMounted();
    const { connect } = await import('node:net');
    const { XdrWriter } = await import('../../xdr/writer.ts');
    const call = async (xid: number, procedure: number, args: (writer: InstanceType<typeof XdrWriter>) => void) => {
      const writer = new XdrWriter().u32(0).u32(xid).u32(0).u32(2).u32(100003).u32(3).u32(procedure);
      writer.u32(0).u32(0).u32(0).u32(0);
      args(writer);
      writer.view.setUint32(0, (0x8000_0000 | (writer.offset - 4)) >>> 0);
      const socket = connect(own.server.port, '127.0.0.1');
      onTestFinished(() => void socket.destroy());
      socket.write(writer.written);
      const [answer] = await new Promise<[Buffer]>((resolve) => socket.once('data', (data) => resolve([data])));
      socket.destroy();
      return { status: answer.readUInt32BE(28), all: answer };
    };
    fs.chmodSync(own.directory, 0o777);
    const mkdirCall = (xid: number) =>
      call(xid, 9, (writer) => {
        writer.opaque(root).string('once').u32(0).u32(0).u32(0).u32(0).u32(0).u32(0);
      });
    const rmdirCall = (xid: number) => call(xid, 13, (writer) => void writer.opaque(root).string('once'));
    const [first, resentReply] = [await mkdirCall(1), await mkdirCall(1)];
    expect(first.status).toBe(0);
    expect(resentReply.all).toEqual(first.all);
    expect((await mkdirCall(2)).status).toBe(17);
    expect((await rmdirCall(3)).status).toBe(0);
    expect((await rmdirCall(3)).status).toBe(0);
    expect((await rmdirCall(4)).status).toBe(2);
    expect(fs.existsSync(pathOf('once'))).toBe(false);
  });

  test('200 concurrent calls are all executed', async () => {
    const { rpc, root, own } = await startMounted();
    await Promise.all(
      Array.from({ length: 200 }, (_, i) =>
        rpc.call(create, { directory: root, name: `f${i}`, how: { mode: 'guarded', set: {} } }),
      ),
    );
    expect(readdirSync(own.directory)).toHaveLength(200);
    const all = await Promise.all(Array.from({ length: 1000 }, () => rpc.call(getattr, root)));
    expect(new Set(all.map(({ fileId }) => fileId)).size).toBe(1);
  });
});
