import { execFileSync } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import type { Stats } from 'node:fs';
import * as fs from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type GaneshaExport, startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { mountImage } from '#testing/loop-mount.ts';
import { type OpenExport, openExport, rpcTo, user } from '#testing/nfs-export.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import type { Text } from '../xdr/writer.ts';
import type { NfsClient } from './client.ts';
import { listDirectory } from './listing.ts';
import { listExports, mnt, unmnt } from './mount.ts';
import { accessRight, getattr } from './procedures.ts';
import { type Attributes, type EntryPlus, type FileHandle, fileType, nameOf, stability } from './structures.ts';

const seconds = (ms: number): number => Math.floor(ms / 1000);
const text = (bytes: Text): string => Buffer.from(bytes as Uint8Array).toString('latin1');
/** The id of an ordinary user without permissions on the folder. */
const otherUser = 4321;

async function listAll(
  client: Pick<NfsClient, 'readdirplus' | 'readdir'>,
  directory: FileHandle,
  bytes?: number,
): Promise<EntryPlus[]> {
  const all: EntryPlus[] = [];
  for await (const page of listDirectory(client, directory, bytes === undefined ? {} : { bytes })) all.push(...page);
  return all;
}

/** Expects that the attributes from the server equal those from the kernel. */
function expectSame(attributes: Attributes, stat: Stats): void {
  expect(attributes).toMatchObject({
    mode: stat.mode & 0o7777,
    links: stat.nlink,
    uid: stat.uid,
    gid: stat.gid,
    size: stat.size,
    used: stat.blocks * 512,
    fileId: BigInt(stat.ino),
    mtime: seconds(stat.mtimeMs),
    ctime: seconds(stat.ctimeMs),
    atime: seconds(stat.atimeMs),
  });
}

const kinds = [
  { kind: 'ext4', mount: (scratch: ScratchFolder, at: string) => mountImage(scratch.image('disk', 256, 'ext4'), at) },
  {
    kind: 'tmpfs',
    mount: (_: ScratchFolder, at: string) =>
      void execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=256m', 'stowage-nfs', at]),
  },
] as const;

describe.skipIf(lacks('root', 'mount', 'loop', 'ext4', 'ganesha')).each(kinds)('ganesha on $kind', ({ mount }) => {
  let scratch: ScratchFolder;
  let server: NfsServer;
  let open: OpenExport;
  let nfs: NfsClient;
  /** The mount point of the file system that the server exports. */
  let disk: string;
  /** The folder of the current test. */
  let folder: string;
  let directory: FileHandle;
  let count = 0;

  const exportPath = (tag: string): string => join(disk, tag);
  const pathOf = (name: string): string => join(folder, name);
  const create = async (name: Text, mode = 0o644): Promise<FileHandle> =>
    (await nfs.create(directory, name, { mode: 'guarded', set: { mode } })).handle;

  beforeAll(async () => {
    scratch = createScratchFolder();
    disk = join(scratch.folder, 'exported');
    fs.mkdirSync(disk);
    mount(scratch, disk);
    const exports: readonly [GaneshaExport, ...GaneshaExport[]] = [
      { tag: 'rw', path: exportPath('rw') },
      { tag: 'ro', path: exportPath('ro'), readOnly: true },
      { tag: 'squash', path: exportPath('squash'), squash: 'root' },
      { tag: 'low', path: exportPath('low'), privilegedPort: true },
    ];
    for (const { path } of exports) fs.mkdirSync(path);
    fs.mkdirSync(join(exportPath('squash'), 'for-all'));
    fs.chmodSync(join(exportPath('squash'), 'for-all'), 0o777);
    server = await startGanesha({ exports, signal: scratch.scope.signal });
    open = await openExport(server, exportPath('rw'));
    ({ nfs } = open);
  });
  afterAll(async () => {
    open?.[Symbol.dispose]();
    await server?.[Symbol.asyncDispose]();
    scratch?.[Symbol.dispose]();
  });
  beforeEach(async () => {
    const name = `test-${++count}`;
    folder = join(exportPath('rw'), name);
    ({ handle: directory } = await nfs.mkdir(open.root, name, { mode: 0o755 }));
  });

  describe('MOUNT', () => {
    test('an export is mounted by its path and by its tag, listed, and unmounted', async () => {
      using mountRpc = rpcTo(server.host, server.mountPort, { identity: user(0) });
      const byPath = await mountRpc.call(mnt, exportPath('rw'));
      expect(byPath.flavors).toContain(1);
      expect((await mountRpc.call(mnt, 'rw')).handle).toEqual(byPath.handle);
      const paths = (await mountRpc.call(listExports, undefined)).map(({ path }) => path);
      expect(paths.toSorted()).toEqual(['low', 'ro', 'rw', 'squash'].map(exportPath));
      await mountRpc.call(unmnt, exportPath('rw'));
      expectSame(await nfs.getattr(byPath.handle), fs.statSync(exportPath('rw')));
    });

    // Ganesha returns ACCES also for paths that do not exist.
    test('a path that is not exported is refused', async () => {
      using mountRpc = rpcTo(server.host, server.mountPort, { identity: user(0) });
      await expect(mountRpc.call(mnt, '/no/such')).rejects.toMatchObject({ name: 'MountError', statusName: 'ACCES' });
    });
  });

  describe('the file system', () => {
    test('NULL, FSSTAT, FSINFO and PATHCONF return its properties', async () => {
      await nfs.null();
      const stat = fs.statfsSync(folder);
      const fsstat = await nfs.fsstat(directory);
      expect(fsstat.totalBytes).toBe(BigInt(stat.blocks) * BigInt(stat.bsize));
      expect(fsstat.totalFiles).toBe(BigInt(stat.files));
      const fsinfo = await nfs.fsinfo(directory);
      expect(fsinfo.maxWrite).toBeGreaterThanOrEqual(1024 * 1024);
      expect(fsinfo.maxRead).toBeGreaterThanOrEqual(1024 * 1024);
      expect(await nfs.pathconf(directory)).toMatchObject({ refusesLongNames: true, ignoresCase: false });
    });

    test('GETATTR and LOOKUP return the same as the kernel, for every kind of file', async () => {
      fs.writeFileSync(pathOf('regular'), 'twelve bytes', { mode: 0o640 });
      fs.mkdirSync(pathOf('directory'), { mode: 0o711 });
      fs.symlinkSync('regular', pathOf('link'));
      const made = seconds(fs.lstatSync(pathOf('link')).mtimeMs);
      execFileSync('mkfifo', [pathOf('fifo')]);
      execFileSync('mknod', [pathOf('character'), 'c', '1', '3']);
      execFileSync('mknod', [pathOf('block'), 'b', '7', '0']);
      const socketServer = createServer().listen(pathOf('socket'));
      for (const name of Object.keys(fileType) as (keyof typeof fileType)[]) {
        const { handle, attributes } = await nfs.lookup(directory, name);
        expect(attributes).toEqual(await nfs.getattr(handle));
        expect(attributes?.type).toBe(fileType[name]);
        const now = fs.lstatSync(pathOf(name));
        // Reading a link changes its atime, also when the server reads it.
        const read = seconds(now.atimeMs);
        if (name === 'link') expect(attributes?.atime).toSatisfy((told: number) => made <= told && told <= read);
        const atime = name === 'link' ? read : attributes?.atime;
        expectSame({ ...attributes, atime } as Attributes, now);
      }
      expect(await nfs.lookup(directory, 'character')).toMatchObject({ attributes: { major: 1, minor: 3 } });
      socketServer.close();
    });

    test('READDIR and READDIRPLUS return each of thousands of entries once, in pages of any size', async () => {
      const names = Array.from({ length: 3000 }, (_, i) => `entry-${i}-${'x'.repeat(i % 200)}`);
      for (const name of names) fs.writeFileSync(pathOf(name), '');
      const withAttributes = await listAll(nfs, directory);
      expect(withAttributes.map(({ name }) => name).toSorted()).toEqual(names.toSorted());
      for (const { name, fileId, attributes, handle } of withAttributes.slice(0, 20)) {
        expect(fileId).toBe(BigInt(fs.statSync(pathOf(name)).ino));
        expect(attributes?.fileId).toBe(fileId);
        expect(await nfs.getattr(handle as FileHandle)).toMatchObject({ fileId });
      }
      for (const bytes of [4096, 1024 * 1024]) {
        const plain = { readdir: nfs.readdir, readdirplus: () => Promise.reject(new Error('not asked for')) };
        const pages: number[] = [];
        let [cookie, verifier] = [0n, 0n];
        for (let isEnd = false; !isEnd; ) {
          const page = await plain.readdir({ directory, cookie, verifier, bytes });
          pages.push(...page.entries.map(({ name }) => names.indexOf(name)));
          cookie = page.entries.at(-1)?.cookie ?? cookie;
          ({ verifier, isEnd } = page);
        }
        expect(pages.filter((i) => i >= 0).toSorted((a, b) => a - b)).toEqual(names.map((_, i) => i));
        expect(await listAll(nfs, directory, bytes)).toHaveLength(names.length);
      }
    });
  });

  describe('names', () => {
    const unusualNames = {
      'of 255 bytes': Buffer.from('n'.repeat(255)),
      'of 255 bytes in 85 characters': Buffer.from('語'.repeat(85)),
      'that are not UTF-8': Buffer.from([0x66, 0xff, 0xfe, 0x80, 0x2e]),
      'with the replacement character itself': Buffer.from('a\ufffdb'),
      'that end a line': Buffer.from('a\n\\b '),
    };
    test.each(Object.entries(unusualNames))('%s are listed as they were created', async (_, bytes) => {
      const handle = await create(bytes);
      expect(fs.readdirSync(folder, { encoding: 'buffer' }).map(text)).toEqual([text(bytes)]);
      const [entry] = await listAll(nfs, directory);
      expect(text(Buffer.from(nameOf(entry as EntryPlus) as Uint8Array))).toBe(text(bytes));
      const { handle: found } = await nfs.lookup(directory, nameOf(entry as EntryPlus));
      expect(await nfs.getattr(found)).toEqual(await nfs.getattr(handle));
      await nfs.rename({ directory, name: bytes }, { directory, name: bytes.subarray(1) });
      await nfs.remove(directory, bytes.subarray(1));
      expect(fs.readdirSync(folder)).toEqual([]);
    });

    test.each([['a'.repeat(256)], ['語'.repeat(86)], ['a/b'], ['..'], ['.'], [''], ['a\0b']])(
      '%j is rejected without a call to the server',
      async (name) => {
        await expect(nfs.lookup(directory, name)).rejects.toMatchObject({ name: 'NameError' });
        await expect(nfs.mkdir(directory, name, {})).rejects.toMatchObject({ name: 'NameError' });
      },
    );
  });

  describe('changes', () => {
    test('SETATTR sets mode, owner, size and times, each alone', async () => {
      const handle = await create('file');
      await nfs.setattr(handle, { mode: 0o4751 });
      await nfs.setattr(handle, { uid: 4_000_000_000, gid: 77 });
      await nfs.setattr(handle, { size: 12_345 });
      await nfs.setattr(handle, {
        atime: { seconds: 1_000_000_000, nanoseconds: 123_456_789 },
        mtime: { seconds: 2_000_000_000, nanoseconds: 987_654_321 },
      });
      const { atimeNs, mtimeNs, ...stat } = fs.statSync(pathOf('file'), { bigint: true });
      expect([stat.uid, stat.gid, stat.size]).toEqual([4_000_000_000n, 77n, 12_345n]);
      expect([atimeNs, mtimeNs]).toEqual([1_000_000_000_123_456_789n, 2_000_000_000_987_654_321n]);
      expectSame(await nfs.getattr(handle), fs.statSync(pathOf('file')));
      const before = seconds(Date.now());
      await nfs.setattr(handle, { mtime: 'now' });
      const { mtime, atime } = await nfs.getattr(handle);
      expect([mtime >= before - 1, atime]).toEqual([true, 1_000_000_000]);
    });

    test('SETATTR with a guard does nothing once the file has changed', async () => {
      const handle = await create('file');
      const { ctime, ctimeNs } = await nfs.getattr(handle);
      const ifChangedAt = { seconds: ctime, nanoseconds: ctimeNs };
      await nfs.setattr(handle, { mode: 0o600 }, { ifChangedAt });
      await expect(nfs.setattr(handle, { mode: 0o777 }, { ifChangedAt })).rejects.toThrow('SETATTR: NFS3ERR_NOT_SYNC');
      expect(fs.statSync(pathOf('file')).mode & 0o7777).toBe(0o600);
    });

    test('CREATE: unchecked accepts an existing file, guarded does not', async () => {
      const { handle, attributes } = await nfs.create(directory, 'file', {
        mode: 'unchecked',
        set: { mode: 0o640, uid: 12, gid: 34 },
      });
      expect(attributes).toMatchObject({ type: fileType.regular, mode: 0o640, uid: 12, gid: 34, size: 0 });
      fs.writeFileSync(pathOf('file'), 'content');
      expect((await nfs.create(directory, 'file', { mode: 'unchecked', set: {} })).handle).toEqual(handle);
      expect(fs.readFileSync(pathOf('file'), 'utf8')).toBe('content');
      await nfs.create(directory, 'file', { mode: 'unchecked', set: { size: 0 } });
      expect(fs.statSync(pathOf('file')).size).toBe(0);
      await expect(create('file')).rejects.toThrow('CREATE: NFS3ERR_EXIST');
    });

    test('CREATE: a repeated exclusive one finds the file with the same verifier, and fails with another', async () => {
      const how = { mode: 'exclusive', verifier: 0x0102_0304_f5f6_f7f8n } as const;
      const { handle } = await nfs.create(directory, 'file', how);
      expect((await nfs.create(directory, 'file', how)).handle).toEqual(handle);
      await expect(nfs.create(directory, 'file', { ...how, verifier: 1n })).rejects.toThrow('CREATE: NFS3ERR_EXIST');
      // The verifier is kept in the file's times until they are set.
      await nfs.setattr(handle, { mode: 0o600, atime: 'now', mtime: 'now' });
      await expect(nfs.create(directory, 'file', how)).rejects.toThrow('CREATE: NFS3ERR_EXIST');
      expect(fs.readdirSync(folder)).toEqual(['file']);
    });

    test('MKDIR, RMDIR and REMOVE', async () => {
      const { handle, attributes } = await nfs.mkdir(directory, 'sub', { mode: 0o2750, uid: 5, gid: 6 });
      expect(attributes).toMatchObject({ type: fileType.directory, uid: 5, gid: 6 });
      expectSame(await nfs.getattr(handle), fs.statSync(pathOf('sub')));
      await expect(nfs.mkdir(directory, 'sub', {})).rejects.toThrow('MKDIR: NFS3ERR_EXIST');
      await nfs.create(handle, 'file', { mode: 'guarded', set: {} });
      await expect(nfs.rmdir(directory, 'sub')).rejects.toThrow('RMDIR: NFS3ERR_NOTEMPTY');
      await expect(nfs.rmdir(handle, 'file')).rejects.toThrow('RMDIR: NFS3ERR_NOTDIR');
      await expect(nfs.remove(directory, 'sub')).rejects.toThrow('REMOVE: NFS3ERR_ISDIR');
      await nfs.remove(handle, 'file');
      await expect(nfs.remove(handle, 'file')).rejects.toThrow('REMOVE: NFS3ERR_NOENT');
      await nfs.rmdir(directory, 'sub');
      await expect(nfs.rmdir(directory, 'sub')).rejects.toThrow('RMDIR: NFS3ERR_NOENT');
      expect(fs.readdirSync(folder)).toEqual([]);
    });

    test('SYMLINK and READLINK keep every byte of the target', async () => {
      const targets = ['../elsewhere', Buffer.from([0x2f, 0xff, 0x01, 0x80]), 'x'.repeat(1000), '語'];
      for (const [i, target] of targets.entries()) {
        const { handle, attributes } = await nfs.symlink(directory, `link-${i}`, target, { uid: 9 });
        expect(attributes?.type).toBe(fileType.link);
        const bytes = Buffer.from(target as Uint8Array);
        expect(fs.readlinkSync(pathOf(`link-${i}`), { encoding: 'buffer' })).toEqual(bytes);
        expect(Buffer.from((await nfs.readlink(handle)) as Uint8Array)).toEqual(bytes);
      }
      await expect(nfs.symlink(directory, 'link-0', 'x', {})).rejects.toThrow('SYMLINK: NFS3ERR_EXIST');
      await expect(nfs.readlink(await create('file'))).rejects.toThrow('READLINK: NFS3ERR_INVAL');
    });

    test('MKNOD creates pipes, sockets and devices', async () => {
      const make = (name: string, type: number, device = {}) =>
        nfs.mknod({ directory, name, type, set: { mode: 0o620 }, ...device });
      await make('fifo', fileType.fifo);
      await make('socket', fileType.socket);
      await make('null', fileType.character, { major: 1, minor: 3 });
      await make('loop', fileType.block, { major: 7, minor: 300 });
      const stats = ['fifo', 'socket', 'null', 'loop'].map((name) => fs.lstatSync(pathOf(name)));
      expect(
        stats.map((stat) => [stat.isFIFO(), stat.isSocket(), stat.isCharacterDevice(), stat.isBlockDevice()]),
      ).toEqual([0, 1, 2, 3].map((i) => [0, 1, 2, 3].map((j) => i === j)));
      expect(stats.map(({ mode }) => mode & 0o777)).toEqual([0o620, 0o620, 0o620, 0o620]);
      expect((await nfs.lookup(directory, 'loop')).attributes).toMatchObject({ major: 7, minor: 300 });
      expect(execFileSync('stat', ['-c', '%t,%T', pathOf('null'), pathOf('loop')], { encoding: 'utf8' })).toBe(
        '1,3\n7,12c\n',
      );
    });

    test('RENAME moves between directories and over files, not over directories with entries', async () => {
      const { handle: sub } = await nfs.mkdir(directory, 'sub', {});
      const handle = await create('a');
      await create('b');
      fs.writeFileSync(pathOf('a'), 'from a');
      await nfs.rename({ directory, name: 'a' }, { directory: sub, name: 'b' });
      await nfs.rename({ directory: sub, name: 'b' }, { directory, name: 'b' });
      expect(fs.readdirSync(folder).toSorted()).toEqual(['b', 'sub']);
      expect(fs.readFileSync(pathOf('b'), 'utf8')).toBe('from a');
      expect((await nfs.lookup(directory, 'b')).handle).toEqual(handle);
      await expect(nfs.rename({ directory, name: 'a' }, { directory, name: 'c' })).rejects.toThrow(
        'RENAME: NFS3ERR_NOENT',
      );
      await nfs.create(sub, 'inside', { mode: 'guarded', set: {} });
      await nfs.mkdir(directory, 'other', {});
      await expect(nfs.rename({ directory, name: 'other' }, { directory, name: 'sub' })).rejects.toThrow(
        /NFS3ERR_(NOTEMPTY|EXIST)/,
      );
    });

    test('LINK gives a file a second name', async () => {
      const handle = await create('one');
      await nfs.link(handle, { directory, name: 'two' });
      expect(fs.statSync(pathOf('two')).ino).toBe(fs.statSync(pathOf('one')).ino);
      expect((await nfs.getattr(handle)).links).toBe(2);
      await expect(nfs.link(handle, { directory, name: 'two' })).rejects.toThrow('LINK: NFS3ERR_EXIST');
      await nfs.remove(directory, 'one');
      expect((await nfs.getattr(handle)).links).toBe(1);
    });
  });

  describe('data', () => {
    const lengths = [0, 1, 3, 4, 4095, 65_537, 1024 * 1024 - 1, 1024 * 1024];
    test.each(lengths)('%d bytes are written and read unchanged, at an odd offset', async (length) => {
      const data = randomBytes(length);
      const handle = await create('file');
      const { verifier, count: written, committed } = await nfs.write(handle, 7, data, stability.unstable);
      expect([written, committed]).toEqual([length, stability.unstable]);
      expect((await nfs.commit(handle, 0, 0)).verifier).toBe(verifier);
      expect(
        fs
          .readFileSync(pathOf('file'))
          .subarray(length === 0 ? 0 : 7)
          .equals(data),
      ).toBe(true);
      const destination = Buffer.alloc(length + 5, 0xee);
      const { count: read, isEnd, attributes } = await nfs.read(handle, 7, destination);
      expect([read, isEnd, attributes?.size]).toEqual([length, true, length === 0 ? 0 : length + 7]);
      expect(destination.subarray(0, length).equals(data)).toBe(true);
      expect(destination.subarray(length)).toEqual(Buffer.alloc(5, 0xee));
    });

    test('sixteen concurrent reads and writes do not mix', async () => {
      const handle = await create('file');
      const pieces = Array.from({ length: 16 }, (_, i) => randomBytes(100_000 + i * 4097));
      const starts = pieces.map((_, i) => pieces.slice(0, i).reduce((sum, piece) => sum + piece.length, 0));
      await Promise.all(pieces.map((data, i) => nfs.write(handle, starts[i] as number, data, stability.unstable)));
      await nfs.commit(handle, 0, 0);
      expect(fs.readFileSync(pathOf('file')).equals(Buffer.concat(pieces))).toBe(true);
      const read = pieces.map(({ length }) => Buffer.alloc(length));
      await Promise.all(read.map((destination, i) => nfs.read(handle, starts[i] as number, destination)));
      expect(Buffer.concat(read).equals(Buffer.concat(pieces))).toBe(true);
    });

    test('offsets beyond 4 GiB, and reading beyond the end', async () => {
      const handle = await create('file');
      const offset = 5 * 2 ** 30 + 3;
      expect((await nfs.write(handle, offset, Buffer.from('far'), stability.fileSync)).committed).toBe(
        stability.fileSync,
      );
      expect((await nfs.getattr(handle)).size).toBe(offset + 3);
      const destination = Buffer.alloc(8);
      expect(await nfs.read(handle, offset - 2, destination)).toMatchObject({ count: 5, isEnd: true });
      expect(destination.toString()).toBe('\0\0far\0\0\0');
      expect(await nfs.read(handle, offset + 100, destination)).toMatchObject({ count: 0, isEnd: true });
    });

    test('DATA_SYNC is answered with at least DATA_SYNC', async () => {
      const { committed } = await nfs.write(await create('file'), 0, Buffer.from('x'), stability.dataSync);
      expect(committed).toBeGreaterThanOrEqual(stability.dataSync);
    });
  });

  describe('permissions', () => {
    test('ACCESS differs between root and others', async () => {
      const handle = await create('file', 0o600);
      const all = accessRight.read | accessRight.modify | accessRight.extend;
      expect(await nfs.access(handle, all)).toBe(all);
      using other = await openExport(server, 'rw', { identity: user(otherUser) });
      expect(await other.nfs.access(handle, all)).toBe(0);
      await expect(other.nfs.read(handle, 0, Buffer.alloc(1))).rejects.toThrow('READ: NFS3ERR_ACCES');
      await expect(other.nfs.create(directory, 'mine', { mode: 'guarded', set: {} })).rejects.toThrow(
        'CREATE: NFS3ERR_ACCES',
      );
      await expect(other.nfs.setattr(handle, { uid: otherUser })).rejects.toThrow('SETATTR: NFS3ERR_PERM');
    });

    test('of 17 groups the first 16 count, and the last one causes no error', async () => {
      const groups = Array.from({ length: 17 }, (_, i) => 5000 + i);
      for (const group of [5000, 5015, 5016]) {
        const handle = await create(`of-${group}`, 0o040);
        await nfs.setattr(handle, { gid: group });
      }
      using other = await openExport(server, 'rw', { identity: user(otherUser, otherUser, groups) });
      const mayRead = async (name: string): Promise<number> =>
        await other.nfs.access((await other.nfs.lookup(directory, name)).handle, accessRight.read);
      expect(await Promise.all(['of-5000', 'of-5015', 'of-5016'].map(mayRead))).toEqual([1, 1, 0]);
    });

    test('the server refuses a caller without credentials', async () => {
      using anonymous = rpcTo(server.host, server.nfsPort, {});
      await expect(anonymous.call(getattr, directory)).rejects.toMatchObject({ name: 'RpcError', failure: 'denied' });
    });

    test('root squash: root has the rights of others', async () => {
      using squashed = await openExport(server, 'squash');
      const { nfs: client, root } = squashed;
      const make = (at: FileHandle) => client.create(at, 'file', { mode: 'guarded', set: {} });
      await expect(make(root)).rejects.toThrow('CREATE: NFS3ERR_ACCES');
      const { handle } = await make((await client.lookup(root, 'for-all')).handle);
      expect((await client.getattr(handle)).uid).toBe(4_294_967_294);
    });

    test('a read-only export answers ROFS to every change', async () => {
      fs.writeFileSync(join(exportPath('ro'), 'there'), 'there');
      using readOnly = await openExport(server, 'ro');
      const { nfs: client, root } = readOnly;
      const { handle } = await client.lookup(root, 'there');
      const destination = Buffer.alloc(5);
      await client.read(handle, 0, destination);
      expect(destination.toString()).toBe('there');
      const changes = {
        CREATE: () => client.create(root, 'x', { mode: 'guarded', set: {} }),
        MKDIR: () => client.mkdir(root, 'x', {}),
        SYMLINK: () => client.symlink(root, 'x', 'y', {}),
        MKNOD: () => client.mknod({ directory: root, name: 'x', type: fileType.fifo, set: {} }),
        WRITE: () => client.write(handle, 0, destination, stability.fileSync),
        SETATTR: () => client.setattr(handle, { mode: 0 }),
        REMOVE: () => client.remove(root, 'there'),
        RMDIR: () => client.rmdir(root, 'there'),
        RENAME: () => client.rename({ directory: root, name: 'there' }, { directory: root, name: 'x' }),
        LINK: () => client.link(handle, { directory: root, name: 'x' }),
      };
      for (const [name, change] of Object.entries(changes)) {
        await expect(change(), name).rejects.toThrow(`${name}: NFS3ERR_ROFS`);
      }
      expect(fs.readdirSync(exportPath('ro'))).toEqual(['there']);
    });

    test('an export for privileged ports accepts us from one, and denies other ports', async () => {
      using unprivileged = await openExport(server, 'low');
      await expect(unprivileged.nfs.getattr(unprivileged.root)).rejects.toMatchObject({
        name: 'RpcError',
        failure: 'denied',
      });
      // If a port is in use, the next attempt uses another one.
      using privileged = await openExport(server, 'low', { localPort: () => randomInt(512, 1024), dialRounds: 10 });
      expectSame(await privileged.nfs.getattr(privileged.root), fs.statSync(exportPath('low')));
    });
  });

  describe('handles', () => {
    test('of removed files are STALE, and invalid handles are BADHANDLE', async () => {
      const handle = await create('file');
      await nfs.remove(directory, 'file');
      await expect(nfs.getattr(handle)).rejects.toMatchObject({ statusName: 'STALE' });
      const { handle: sub } = await nfs.mkdir(directory, 'sub', {});
      await nfs.rmdir(directory, 'sub');
      await expect(nfs.create(sub, 'x', { mode: 'guarded', set: {} })).rejects.toMatchObject({ statusName: 'STALE' });
      for (const bogus of [Buffer.alloc(0), Buffer.from('bogus'), Buffer.alloc(64, 0xff)])
        await expect(nfs.getattr(bogus)).rejects.toMatchObject({ statusName: 'BADHANDLE' });
    });

    test('outlive the server, and the verifier shows that uncommitted writes may be lost', async () => {
      const handle = await create('file');
      const { verifier } = await nfs.write(handle, 0, Buffer.from('before'), stability.unstable);
      await server.kill();
      // Ganesha's verifier is its start time in seconds.
      const killedIn = seconds(Date.now());
      await expect.poll(() => seconds(Date.now()), { timeout: 5000 }).toBeGreaterThan(killedIn);
      await server.restart();
      const commitAfterRestart = await nfs.commit(handle, 0, 0);
      expect(commitAfterRestart.verifier).not.toBe(verifier);
      expect((await nfs.getattr(directory)).type).toBe(fileType.directory);
    });

    test('errors of lookup: NOENT, NOTDIR', async () => {
      await expect(nfs.lookup(directory, 'missing')).rejects.toThrow('LOOKUP: NFS3ERR_NOENT');
      await expect(nfs.lookup(await create('file'), 'x')).rejects.toThrow('LOOKUP: NFS3ERR_NOTDIR');
      await expect(
        nfs.readdirplus({ directory: await create('g'), cookie: 0n, verifier: 0n, bytes: 8192 }),
      ).rejects.toThrow('READDIRPLUS: NFS3ERR_NOTDIR');
    });
  });

  test('a frozen server executes a call after its deadline', async () => {
    await server.freeze();
    try {
      await expect(nfs.mkdir(directory, 'late', {}, { deadlineMs: 200 })).rejects.toMatchObject({
        name: 'RpcError',
        failure: 'deadline',
        maybeDone: true,
      });
    } finally {
      server.thaw();
    }
    await expect.poll(() => fs.readdirSync(folder)).toEqual(['late']);
    expect((await nfs.lookup(directory, 'late')).attributes?.type).toBe(fileType.directory);
  });
});
