import type { BigIntStats } from 'node:fs';
import { chmodSync, constants, lchownSync, lstatSync, truncateSync, utimesSync } from 'node:fs';
import { link, lstat, mkdir, open, readdir, rename, rmdir, statfs, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '#base/errno.ts';
import { type Connect, identityOf } from '#stores/nfs/connect.ts';
import {
  type Attributes,
  errnoByStatus,
  type FileHandle,
  fileType,
  type NfsClient,
  NfsError,
  type NfsStatusName,
  nfsStatus,
  type Time,
} from '#wire/nfs3/index.ts';
import { grantedAccess } from '#wire/nfs3/server/access.ts';
import type { Credentials } from '#wire/nfs3/server/identities.ts';

/**
 * The interface of an NFS client on a folder of this machine, without a server, so that tests of the store run
 * anywhere. A handle is a path. Unlike a real server's handle, it does not survive a rename, and the store must cope
 * with that. If the store's path is a folder in `folder`, the export is that folder; otherwise it is all of `folder`.
 */
export function connectToDisk(folder: string): Connect {
  return async (options, onStep) => {
    const { path } = options;
    const { uid, gid, groups } = identityOf(options);
    const exported = path.startsWith(`${folder}/`) ? path : folder;
    onStep('resolve', folder);
    onStep('connect', folder);
    return {
      nfs: createNfsOnDisk({ uid, gid, groups, isRoot: uid === 0 }),
      addresses: ['127.0.0.1'],
      port: 2049,
      mount: async () => {
        onStep('mount', folder);
        return Buffer.from(exported);
      },
      findHangUp: async () => undefined,
      calls: 0,
      close: () => undefined,
    };
  };
}

const statuses: Readonly<Record<string, number>> = {
  ...Object.fromEntries(
    Object.entries(errnoByStatus).map(([name, errno]) => [errno, nfsStatus[name as NfsStatusName]]),
  ),
  NOT_SYNC: nfsStatus.NOT_SYNC,
};

const answered = <T>(procedure: string, work: () => Promise<T>): Promise<T> =>
  work().catch((cause: unknown) => {
    const code = errnoOf(cause) ?? '';
    return Promise.reject(new NfsError(procedure, statuses[code] ?? nfsStatus.IO, false));
  });

const unknownChange = { before: undefined, after: undefined };

const pathOf = (handle: FileHandle): string => Buffer.from(handle).toString();
const within = (directory: FileHandle, name: unknown): string => join(pathOf(directory), String(name));
const notImplemented = (): never => {
  throw new Error('the store does not use this');
};

function attributesOf(found: BigIntStats): Attributes {
  const time = (ns: bigint): [number, number] => [Number(ns / 1_000_000_000n), Number(ns % 1_000_000_000n)];
  const [[atime, atimeNs], [mtime, mtimeNs], [ctime, ctimeNs]] = [found.atimeNs, found.mtimeNs, found.ctimeNs].map(
    time,
  ) as [[number, number], [number, number], [number, number]];
  const type = found.isDirectory()
    ? fileType.directory
    : found.isSymbolicLink()
      ? fileType.link
      : found.isFile()
        ? fileType.regular
        : fileType.fifo;
  return {
    type,
    mode: Number(found.mode & 0o7777n),
    links: Number(found.nlink),
    uid: Number(found.uid),
    gid: Number(found.gid),
    size: Number(found.size),
    used: Number(found.blocks) * 512,
    major: 0,
    minor: 0,
    fsid: found.dev,
    fileId: found.ino,
    atime,
    atimeNs,
    mtime,
    mtimeNs,
    ctime,
    ctimeNs,
  };
}

/**
 * Checks the mode bits of files for these credentials. Root may do everything. The system checks whether this process
 * may do so.
 */
function createNfsOnDisk(who: Credentials): NfsClient {
  const look = async (path: string): Promise<Attributes> => attributesOf(await lstat(path, { bigint: true }));
  const found = async (path: string) => ({ handle: Buffer.from(path), attributes: await look(path) });

  /** No other call of this process sees only some of the attributes, as on a server. */
  function setAttributes(path: string, set: Parameters<NfsClient['mkdir']>[2], guard?: Time): void {
    const { ctime, ctimeNs, ...now } = attributesOf(lstatSync(path, { bigint: true }));
    if (guard !== undefined && (guard.seconds !== ctime || guard.nanoseconds !== ctimeNs))
      throw Object.assign(new Error('it has changed'), { code: 'NOT_SYNC' });
    if (set.uid !== undefined || set.gid !== undefined) lchownSync(path, set.uid ?? -1, set.gid ?? -1);
    if (set.mode !== undefined) chmodSync(path, set.mode);
    if (set.size !== undefined) truncateSync(path, set.size);
    if (set.atime === undefined && set.mtime === undefined) return;
    const seconds = (time: typeof set.mtime, is: number, isNs: number): number =>
      time === 'now' ? Date.now() / 1000 : time === undefined ? is + isNs / 1e9 : time.seconds + time.nanoseconds / 1e9;
    utimesSync(path, seconds(set.atime, now.atime, now.atimeNs), seconds(set.mtime, now.mtime, now.mtimeNs));
  }

  async function entries(directory: FileHandle) {
    const names = await readdir(pathOf(directory));
    const all = await Promise.all(
      names.map(async (name, i) => {
        const about = await found(within(directory, name)).catch(() => undefined);
        const known = { handle: about?.handle, attributes: about?.attributes };
        return { fileId: about?.attributes.fileId ?? 0n, name, bytes: undefined, cookie: BigInt(i + 1), ...known };
      }),
    );
    return { entries: all, verifier: 0n, isEnd: true, attributes: undefined };
  }

  return {
    null: async () => undefined,
    getattr: (handle) => answered('GETATTR', () => look(pathOf(handle))),
    setattr: (handle, set, options) =>
      answered('SETATTR', async () => {
        setAttributes(pathOf(handle), set, options?.ifChangedAt);
        return { before: undefined, after: attributesOf(lstatSync(pathOf(handle), { bigint: true })) };
      }),
    lookup: (directory, name) =>
      answered('LOOKUP', async () => ({ ...(await found(within(directory, name))), directory: undefined })),
    access: (handle, mask) =>
      answered('ACCESS', async () => grantedAccess(await lstat(pathOf(handle), { bigint: true }), who, mask, false)),
    readlink: notImplemented,
    read: (handle, offset, into) =>
      answered('READ', async () => {
        const file = await open(pathOf(handle), constants.O_RDONLY | constants.O_NOFOLLOW);
        try {
          const buffer = into instanceof Uint8Array ? into : into.take(into.length);
          const { bytesRead } = await file.read(buffer, 0, buffer.length, offset);
          const data = buffer.subarray(0, bytesRead);
          return { count: bytesRead, isEnd: bytesRead < buffer.length, attributes: undefined, data };
        } finally {
          await file.close();
        }
      }),
    write: (handle, offset, data) =>
      answered('WRITE', async () => {
        const file = await open(pathOf(handle), constants.O_WRONLY | constants.O_NOFOLLOW);
        try {
          const { bytesWritten } = await file.write(data, 0, data.length, offset);
          await file.datasync();
          return {
            count: bytesWritten,
            committed: 2,
            verifier: 0n,
            change: { before: undefined, after: await look(pathOf(handle)) },
          };
        } finally {
          await file.close();
        }
      }),
    create: (directory, name, how) =>
      answered('CREATE', async () => {
        const path = within(directory, name);
        await (await open(path, 'wx')).close();
        if (how.mode !== 'exclusive') setAttributes(path, how.set);
        return await found(path);
      }),
    mkdir: (directory, name, set) =>
      answered('MKDIR', async () => {
        const path = within(directory, name);
        await mkdir(path);
        setAttributes(path, set);
        return await found(path);
      }),
    symlink: notImplemented,
    mknod: notImplemented,
    remove: (directory, name) => answered('REMOVE', () => unlink(within(directory, name)).then(() => unknownChange)),
    rmdir: (directory, name) => answered('RMDIR', () => rmdir(within(directory, name)).then(() => unknownChange)),
    rename: (from, to) =>
      answered('RENAME', async () => {
        await rename(within(from.directory, from.name), within(to.directory, to.name));
        return { from: unknownChange, to: unknownChange };
      }),
    link: (handle, to) =>
      answered('LINK', async () => {
        await link(pathOf(handle), within(to.directory, to.name));
        return { attributes: undefined, change: unknownChange };
      }),
    readdir: ({ directory }) => answered('READDIR', () => entries(directory)),
    readdirplus: ({ directory }) => answered('READDIRPLUS', () => entries(directory)),
    fsstat: (handle) =>
      answered('FSSTAT', async () => {
        const { bsize, blocks, bavail, bfree, files, ffree } = await statfs(pathOf(handle), { bigint: true });
        return {
          totalBytes: blocks * bsize,
          freeBytes: bfree * bsize,
          availableBytes: bavail * bsize,
          totalFiles: files,
          freeFiles: ffree,
          availableFiles: ffree,
          unchangedSeconds: 0,
          attributes: undefined,
        };
      }),
    fsinfo: notImplemented,
    pathconf: notImplemented,
    commit: async () => ({ verifier: 0n, attributes: undefined }),
  };
}
