import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { startGanesha } from '#testbed/ganesha.ts';
import { startGoNfs } from '#testbed/go-nfs.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { startRustNfs } from '#testbed/nfs3-server.ts';
import { startGaneshaWithRpcbind } from '#testbed/rpcbind.ts';
import { type OpenExport, openExport, rpcTo, user } from '#testing/nfs-export.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { findPort, portmapPort } from '../rpc/portmap.ts';
import type { NfsClient } from './client.ts';
import { copyTree } from './copy-tree.ts';
import { readFully } from './file-reader.ts';
import { createFileWriter } from './file-writer.ts';
import { listDirectory } from './listing.ts';
import { listExports, mnt, mountProgram, mountVersion, unmnt } from './mount.ts';
import { lookup } from './procedures.ts';
import { emptyDirectory, removeTree } from './remove-tree.ts';
import { type FileHandle, fileType, nfsProgram, nfsVersion, stability } from './structures.ts';

interface TestedServer {
  scratch: ScratchFolder;
  server: NfsServer;
  open: OpenExport;
  nfs: NfsClient;
  root: FileHandle;
}

/** Starts a server for the tests of one describe and mounts its export: the scratch folder, unless the server is in memory. */
function startServer({ start, exported }: ServerKind): TestedServer {
  const tested = {} as TestedServer;
  beforeAll(async () => {
    tested.scratch = createScratchFolder();
    tested.server = await start(tested.scratch.folder, tested.scratch.scope.signal);
    tested.open = await openExport(tested.server, exported);
    ({ nfs: tested.nfs, root: tested.root } = tested.open);
  });
  afterAll(async () => {
    tested.open?.[Symbol.dispose]();
    await tested.server?.[Symbol.asyncDispose]();
    tested.scratch?.[Symbol.dispose]();
  });
  return tested;
}

interface ServerKind {
  /** The path or tag to mount. */
  readonly exported: string;
  start(folder: string, signal: AbortSignal): Promise<NfsServer>;
}

const ganesha: ServerKind = {
  exported: 'it',
  start: (path, signal) => startGanesha({ exports: [{ path, tag: 'it' }], signal }),
};
const goNfs: ServerKind = { exported: '/', start: (path, signal) => startGoNfs({ path, signal }) };
const rustNfs: ServerKind = { exported: '/', start: (_, signal) => startRustNfs(signal) };

const guarded = { mode: 'guarded', set: {} } as const;

async function names(nfs: NfsClient, directory: FileHandle, bytes?: number): Promise<string[]> {
  const all: string[] = [];
  for await (const page of listDirectory(nfs, directory, bytes === undefined ? {} : { bytes }))
    all.push(...page.map(({ name }) => name));
  return all.toSorted();
}

describe.skipIf(lacks('root', 'ganesha', 'go-nfs', 'nfs3-server')).each([
  ['ganesha', ganesha],
  ['go-nfs', goNfs],
  ['nfs3_server', rustNfs],
] as const)('every server: %s', (name, kind) => {
  const tested = startServer(kind);
  let count = 0;
  let directory: FileHandle;

  beforeEach(async () => {
    ({ handle: directory } = await tested.nfs.mkdir(tested.root, `test-${++count}`, { mode: 0o755 }));
  });

  test('MNT, UMNT, NULL, FSSTAT, FSINFO, PATHCONF and ACCESS are answered', async () => {
    const { nfs, root, server } = tested;
    using mountRpc = rpcTo(server.host, server.mountPort, { identity: user(0) });
    expect((await mountRpc.call(mnt, kind.exported)).handle).toEqual(root);
    await mountRpc.call(unmnt, kind.exported);
    await nfs.null();
    expect((await nfs.fsstat(root)).totalBytes).toBeGreaterThan(0n);
    expect((await nfs.fsinfo(root)).maxWrite).toBeGreaterThanOrEqual(1024 * 1024);
    expect((await nfs.pathconf(root)).maxName).toBeGreaterThanOrEqual(255);
    expect(await nfs.access(root, 63)).toBeGreaterThan(0);
  });

  test('files: guarded CREATE, LOOKUP, GETATTR, SETATTR, WRITE, COMMIT, READ, REMOVE', async () => {
    const { nfs } = tested;
    const { handle } = await nfs.create(directory, 'file', guarded);
    await expect(nfs.create(directory, 'file', guarded)).rejects.toThrow('CREATE: NFS3ERR_EXIST');
    const data = randomBytes(1024 * 1024 - 3);
    const { count: written, verifier } = await nfs.write(handle, 0, data, stability.unstable);
    expect([written, (await nfs.commit(handle, 0, 0)).verifier]).toEqual([data.length, verifier]);
    const destination = Buffer.alloc(data.length);
    expect(await nfs.read(handle, 1, destination)).toMatchObject({ count: data.length - 1, isEnd: true });
    expect(destination.subarray(0, -1).equals(data.subarray(1))).toBe(true);
    await nfs.setattr(handle, { size: 10, mtime: { seconds: 1_000_000_000, nanoseconds: 5 } });
    const found = await nfs.lookup(directory, 'file');
    expect(await nfs.getattr(found.handle)).toMatchObject({
      type: fileType.regular,
      size: 10,
      mtime: 1_000_000_000,
      mtimeNs: 5,
    });
    await nfs.remove(directory, 'file');
    await expect(nfs.lookup(directory, 'file')).rejects.toThrow('LOOKUP: NFS3ERR_NOENT');
    await expect(nfs.remove(directory, 'file')).rejects.toThrow('REMOVE: NFS3ERR_NOENT');
  });

  test('directories: MKDIR, RENAME, RMDIR; the mode has permission bits only', async () => {
    const { nfs } = tested;
    const { attributes } = await nfs.mkdir(directory, 'sub', { mode: 0o755 });
    expect(attributes?.type).toBe(fileType.directory);
    expect((attributes?.mode ?? 0) & ~0o7777).toBe(0);
    await nfs.rename({ directory, name: 'sub' }, { directory, name: 'moved' });
    for (const file of ['over', 'file']) await nfs.create(directory, file, guarded);
    await nfs.rename({ directory, name: 'over' }, { directory, name: 'file' });
    await nfs.remove(directory, 'file');
    expect(await names(nfs, directory)).toEqual(['moved']);
    await nfs.rmdir(directory, 'moved');
    await expect(nfs.rmdir(directory, 'moved')).rejects.toThrow('RMDIR: NFS3ERR_NOENT');
  });

  test('names of 255 bytes, and names that are not UTF-8', async () => {
    const { nfs } = tested;
    const long = 'n'.repeat(255);
    const notText = Buffer.alloc(200, 0xfe);
    for (const name of [long, notText]) await nfs.create(directory, name, guarded);
    const listed: unknown[] = [];
    for await (const page of listDirectory(nfs, directory))
      listed.push(...page.map((entry) => entry.bytes ?? entry.name));
    expect(listed.toSorted((a, b) => String(a).length - String(b).length)).toEqual([notText, long]);
    for (const name of [long, notText]) await nfs.remove(directory, name);
    expect(await names(nfs, directory)).toEqual([]);
  });

  test('a directory of 2,000 entries is listed in pages of any size, also while it shrinks', async () => {
    const { nfs } = tested;
    const expectedNames = Array.from({ length: 2000 }, (_, i) => `entry-${i}`).toSorted();
    await Promise.all(expectedNames.map((name) => nfs.create(directory, name, guarded)));
    for (const bytes of [4096, 65_536, 1024 * 1024]) expect(await names(nfs, directory, bytes)).toEqual(expectedNames);
    const removed: string[] = [];
    for await (const page of listDirectory(nfs, directory, { bytes: 8192 })) {
      await Promise.all(page.map(({ name }) => nfs.remove(directory, name)));
      removed.push(...page.map(({ name }) => name));
    }
    expect(removed.toSorted()).toEqual(expectedNames);
  });

  test('errors for a removed file, a missing file, and a file in place of a directory', async () => {
    const { nfs } = tested;
    const { handle } = await nfs.create(directory, 'file', guarded);
    await expect(nfs.lookup(handle, 'x')).rejects.toThrow('LOOKUP: NFS3ERR_NOTDIR');
    await nfs.remove(directory, 'file');
    await expect(nfs.getattr(handle)).rejects.toMatchObject({
      statusName: name === 'nfs3_server' ? 'NOENT' : 'STALE',
    });
    await expect(nfs.getattr(Buffer.from('bogus'))).rejects.toMatchObject({
      statusName: name === 'go-nfs' ? 'STALE' : 'BADHANDLE',
    });
  });

  test('a missing procedure, program or version leaves the connection usable', async () => {
    const { nfs, open } = tested;
    const args = { directory, name: 'x' };
    await expect(open.rpc.call({ ...lookup, program: 100_227 }, args)).rejects.toMatchObject({
      failure: 'unsupported',
    });
    // go-nfs does not distinguish the two.
    await expect(open.rpc.call({ ...lookup, number: 30 }, args)).rejects.toMatchObject({
      failure: expect.stringMatching(/^(no-procedure|unsupported)$/),
    });
    await nfs.null();
  });

  test('a file of 5 MiB is written and read through the writer and the reader', async () => {
    const { nfs } = tested;
    const { handle } = await nfs.create(directory, 'file', guarded);
    const data = randomBytes(5 * 1024 * 1024 + 1);
    // One WRITE at a time, since the files of nfs3_server cannot have holes.
    const writer = createFileWriter(nfs, handle, { size: 300_001, atOnce: 1 });
    await writer.write(0, data);
    await writer.flush();
    const destination = Buffer.alloc(data.length + 1);
    expect(await readFully(nfs, handle, 0, destination)).toBe(data.length);
    expect(destination.subarray(0, -1).equals(data)).toBe(true);
  });

  test('a tree is copied and removed', async () => {
    const { nfs } = tested;
    const { handle: from } = await nfs.mkdir(directory, 'from', { mode: 0o755 });
    for (let i = 0; i < 5; i++) {
      const { handle: sub } = await nfs.mkdir(from, `sub-${i}`, { mode: 0o755 });
      const { handle: deeper } = await nfs.mkdir(sub, 'deeper', { mode: 0o755 });
      await Promise.all(Array.from({ length: 40 }, (_, j) => nfs.create(deeper, `file-${j}`, guarded)));
      const { handle } = await nfs.create(sub, 'data', guarded);
      await nfs.write(handle, 0, Buffer.from(`data ${i}`), stability.fileSync);
    }
    const { handle: to } = await nfs.mkdir(directory, 'to', { mode: 0o755 });
    await copyTree(nfs, from, to);
    expect(await names(nfs, to)).toEqual(await names(nfs, from));
    const { handle: sub } = await nfs.lookup(to, 'sub-3');
    expect(await names(nfs, (await nfs.lookup(sub, 'deeper')).handle)).toHaveLength(40);
    const destination = Buffer.alloc(6);
    await nfs.read((await nfs.lookup(sub, 'data')).handle, 0, destination);
    expect(destination.toString()).toBe('data 3');
    await removeTree(nfs, directory, 'from');
    await emptyDirectory(nfs, to);
    expect(await names(nfs, directory)).toEqual(['to']);
    expect(await names(nfs, to)).toEqual([]);
  });
});

describe.skipIf(lacks('go-nfs'))('the differences of go-nfs', () => {
  const tested = startServer(goNfs);

  test('it answers NOTSUPP to an exclusive CREATE', async () => {
    const { nfs, root } = tested;
    await expect(nfs.create(root, 'file', { mode: 'exclusive', verifier: 1n })).rejects.toThrow(
      'CREATE: NFS3ERR_NOTSUPP',
    );
  });

  test('an unchecked CREATE empties an existing file', async () => {
    const { nfs, root, scratch } = tested;
    fs.writeFileSync(join(scratch.folder, 'full'), 'content');
    await nfs.create(root, 'full', { mode: 'unchecked', set: {} });
    expect(fs.readFileSync(join(scratch.folder, 'full'), 'utf8')).toBe('');
  });

  test('RMDIR removes files, and answers IO for a directory that is not empty', async () => {
    const { nfs, root, scratch } = tested;
    fs.mkdirSync(join(scratch.folder, 'filled/inner'), { recursive: true });
    fs.writeFileSync(join(scratch.folder, 'file'), '');
    await expect(nfs.rmdir(root, 'filled')).rejects.toThrow('RMDIR: NFS3ERR_IO');
    await nfs.rmdir(root, 'file');
    expect(fs.existsSync(join(scratch.folder, 'file'))).toBe(false);
    await removeTree(nfs, root, 'filled');
    expect(fs.existsSync(join(scratch.folder, 'filled'))).toBe(false);
  });

  test('it accepts a path instead of a name, so the client has to reject it', async () => {
    const { nfs, root, open, scratch } = tested;
    fs.mkdirSync(join(scratch.folder, 'a/b'), { recursive: true });
    expect((await open.rpc.call(lookup, { directory: root, name: 'a/b' })).attributes?.type).toBe(fileType.directory);
    await expect(nfs.lookup(root, 'a/b')).rejects.toMatchObject({ name: 'NameError' });
  });

  test('its handles identify paths: after RENAME the old handle is STALE', async () => {
    const { nfs, root } = tested;
    const { handle } = await nfs.create(root, 'old', guarded);
    await nfs.rename({ directory: root, name: 'old' }, { directory: root, name: 'new' });
    await expect(nfs.getattr(handle)).rejects.toMatchObject({ statusName: 'STALE' });
    expect((await nfs.lookup(root, 'new')).attributes?.type).toBe(fileType.regular);
  });

  test('it offers transfers of 1 GiB, ignores the user, and does not list its exports', async () => {
    const { nfs, root, server } = tested;
    expect((await nfs.fsinfo(root)).maxWrite).toBe(2 ** 30);
    using mountRpc = rpcTo(server.host, server.mountPort);
    expect((await mountRpc.call(mnt, '/any/name')).flavors).toEqual([0]);
    await expect(mountRpc.call(listExports, undefined)).rejects.toMatchObject({ failure: 'unsupported' });
  });

  test('symbolic links work, hard links do not', async () => {
    const { nfs, root, scratch } = tested;
    const { handle } = await nfs.symlink(root, 'link', 'a/target', {});
    expect([await nfs.readlink(handle), fs.readlinkSync(join(scratch.folder, 'link'))]).toEqual([
      'a/target',
      'a/target',
    ]);
    const { handle: file } = await nfs.create(root, 'linked', guarded);
    await expect(nfs.link(file, { directory: root, name: 'second' })).rejects.toThrow('LINK: NFS3ERR_INVAL');
  });

  test('forgets its handles when it restarts', async () => {
    const { nfs, root, server } = tested;
    await server.restart();
    await expect(nfs.getattr(root)).rejects.toMatchObject({ statusName: 'STALE' });
    using reopened = await openExport(server, '/');
    expect((await reopened.nfs.getattr(reopened.root)).type).toBe(fileType.directory);
  });
});

describe.skipIf(lacks('nfs3-server'))('the differences of nfs3_server', () => {
  const tested = startServer(rustNfs);

  test('MKDIR of an existing name creates a second entry, exclusive CREATE does not', async () => {
    const { nfs, root } = tested;
    const first = await nfs.mkdir(root, 'twice', {});
    const second = await nfs.mkdir(root, 'twice', {});
    expect(first.attributes?.fileId).not.toBe(second.attributes?.fileId);
    const how = { mode: 'exclusive', verifier: 7n } as const;
    const { handle } = await nfs.create(root, 'once', how);
    expect((await nfs.create(root, 'once', how)).handle).toEqual(handle);
    await expect(nfs.create(root, 'once', { ...how, verifier: 8n })).rejects.toThrow('CREATE: NFS3ERR_EXIST');
  });

  test('it answers EXIST also to an unchecked CREATE', async () => {
    const { nfs, root } = tested;
    await nfs.create(root, 'a', guarded);
    await expect(nfs.create(root, 'a', { mode: 'unchecked', set: {} })).rejects.toThrow('CREATE: NFS3ERR_EXIST');
  });

  test('LINK and MKNOD are missing, and SYMLINK answers NOTSUPP', async () => {
    const { nfs, root } = tested;
    const { handle } = await nfs.create(root, 'file', guarded);
    const unsupported = { name: 'NfsError', statusName: 'NOTSUPP' };
    await expect(nfs.link(handle, { directory: root, name: 'x' })).rejects.toMatchObject(unsupported);
    const fifo = { directory: root, name: 'x', type: fileType.fifo, set: {} };
    await expect(nfs.mknod(fifo)).rejects.toMatchObject(unsupported);
    await expect(nfs.symlink(root, 'x', 'y', {})).rejects.toThrow('SYMLINK: NFS3ERR_NOTSUPP');
  });

  test('it answers BAD_COOKIE for the position of a removed entry', async () => {
    const { nfs, root } = tested;
    const { handle: directory } = await nfs.mkdir(root, 'shrinking', {});
    for (let i = 0; i < 100; i++) await nfs.create(directory, `entry-${i}`, guarded);
    const page = await nfs.readdirplus({ directory, cookie: 0n, verifier: 0n, bytes: 4096 });
    for (const { name } of page.entries) await nfs.remove(directory, name);
    const next = { directory, cookie: page.entries.at(-1)?.cookie ?? 0n, verifier: page.verifier, bytes: 4096 };
    await expect(nfs.readdirplus(next)).rejects.toThrow('READDIRPLUS: NFS3ERR_BAD_COOKIE');
  });

  test('handles of an earlier run are STALE', async () => {
    const { nfs, root, server } = tested;
    await server.restart();
    await expect(nfs.getattr(root)).rejects.toMatchObject({ statusName: 'STALE' });
  });
});

describe.skipIf(lacks('root', 'ganesha', 'rpcbind'))('ganesha with a real rpcbind', () => {
  test('is found through rpcbind, and mounted', async () => {
    using scratch = createScratchFolder();
    const { signal } = scratch.scope;
    await using server = await startGaneshaWithRpcbind({ exports: [{ path: scratch.folder, tag: 'it' }], signal });
    using portmapper = rpcTo(server.host, portmapPort);
    const find = (program: number, version: number, network: 'tcp' | 'tcp6') =>
      findPort(portmapper, { program, version }, network, {});
    for (const network of ['tcp', 'tcp6'] as const) {
      expect(await find(nfsProgram, nfsVersion, network)).toBe(server.nfsPort);
      expect(await find(mountProgram, mountVersion, network)).toBe(server.mountPort);
      // The lock manager is not registered.
      expect(await find(100_021, 4, network)).toBeUndefined();
    }
    using open = await openExport(server, 'it');
    await open.nfs.mkdir(open.root, 'made', {});
    expect(fs.readdirSync(scratch.folder)).toEqual(['made']);
  });
});
