import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller, mountNfs } from '#testing/nfs-mount.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';
import type { Attributes, FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { encodeCredential } from '#wire/rpc/message.ts';
import { createFileSystem } from './file-system.ts';
import type { MountContext } from './mount-context.ts';
import { createReaddirAhead } from './readdir-ahead.ts';

describe.skipIf(lacks('fuse', 'ganesha'))('names looked up one after the other', { timeout: 60_000 }, () => {
  const exported = exportedByGanesha();
  const nameOf = (i: number): string => `file ${i}`;

  /** A mount of a directory with `count` files, each as long as its number, and the calls that the server gets. */
  async function mountWithFiles(
    folder: string,
    files: number,
    options: Parameters<typeof mountNfs>[2] = {},
    onListed: () => Promise<void> = async () => undefined,
  ) {
    const name = `names-${files}-${Math.random()}`;
    const made = await exported.nfs.mkdir(exported.directory, name, { mode: 0o711 });
    await Promise.all(
      Array.from({ length: files }, async (_, i) => {
        const { handle } = await exported.nfs.create(made.handle, nameOf(i), { mode: 'guarded', set: { mode: 0o644 } });
        await exported.nfs.write(handle, 0, Buffer.alloc(i % 1000), 2);
      }),
    );
    const calls = { lookups: 0, listed: 0 };
    const nfs: NfsClient = {
      ...exported.nfs,
      lookup: (...args) => {
        calls.lookups++;
        return exported.nfs.lookup(...args);
      },
      readdirplus: async (...args) => {
        const page = await exported.nfs.readdirplus(...args);
        calls.listed += page.entries.length;
        await onListed();
        return page;
      },
    };
    const mount = await mountNfs(folder, { nfs, root: made.handle }, options);
    return Object.assign(mount, {
      asked: calls,
      root: made.handle,
      sizeOf: async (i: number) => (await fs.stat(join(mount.at, nameOf(i)))).size,
    });
  }

  test('are listed ahead: few are requested from the server, and each is correct', async () => {
    using scratch = createScratchFolder();
    // A long cache time, in case this machine is slow.
    await using mount = await mountWithFiles(scratch.folder, 1500, { cacheMs: 60_000 });
    for (let i = 0; i < 1500; i++) expect(await mount.sizeOf(i)).toBe(i % 1000);
    expect(mount.asked.lookups).toBeLessThan(500);
    await expect(fs.stat(join(mount.at, 'not there'))).rejects.toThrow('ENOENT');
    expect(mount.faults).toEqual([]);
  });

  test('are not listed after 10 lookups, and only in part after 40', async () => {
    using scratch = createScratchFolder();
    await using mount = await mountWithFiles(scratch.folder, 6000);
    for (let i = 0; i < 10; i++) expect(await mount.sizeOf(i * 100)).toBe((i * 100) % 1000);
    expect(mount.asked.listed).toBe(0);
    for (let i = 10; i < 40; i++) expect(await mount.sizeOf(i * 100)).toBe((i * 100) % 1000);
    // A page may exceed what is left to list.
    expect(mount.asked.listed).toBeLessThan(40 * 32 + 1000);
  });

  test('are not listed with caching off', async () => {
    using scratch = createScratchFolder();
    await using mount = await mountWithFiles(scratch.folder, 100, { cacheMs: 0 });
    for (let i = 0; i < 100; i++) await mount.sizeOf(i);
    expect(mount.asked.listed).toBe(0);
    expect(mount.asked.lookups).toBeGreaterThanOrEqual(100);
  });

  test('are correct where lookup is permitted and listing is not', async () => {
    using scratch = createScratchFolder();
    await using mount = await mountWithFiles(scratch.folder, 100, { identity: { ...asCaller, squash: 'all' } });
    for (let i = 0; i < 100; i++) expect(await mount.sizeOf(i)).toBe(i);
    expect(mount.asked.listed).toBe(0);
    expect(mount.asked.lookups).toBeGreaterThanOrEqual(100);
    expect(mount.faults).toEqual([]);
  });

  test('show creations and removals by this client at once', async () => {
    using scratch = createScratchFolder();
    await using mount = await mountWithFiles(scratch.folder, 600);
    for (let i = 0; i < 600; i++) {
      if (i % 3 === 0) await fs.rm(join(mount.at, nameOf(i)));
      if (i % 3 === 1) await fs.writeFile(join(mount.at, nameOf(i)), 'ten bytes.');
      if (i % 3 === 0) await expect(mount.sizeOf(i)).rejects.toThrow('ENOENT');
      else expect(await mount.sizeOf(i)).toBe(i % 3 === 1 ? 10 : i);
    }
    expect((await fs.readdir(mount.at)).length).toBe(400);
    expect(mount.faults).toEqual([]);
  });

  /** The same directory on another node, with an empty cache. */
  const mountOnOtherNode = (folder: string, root: FileHandle) =>
    mountNfs(join(folder, 'other'), { nfs: exported.nfs, root });

  /** A listing of a recently changed directory is cached for a second; wait a little longer. */
  const pollOptions = { timeout: 4_000, interval: 50 };

  test('show changes by another node as soon as without listing ahead', async () => {
    using scratch = createScratchFolder();
    await using mount = await mountWithFiles(scratch.folder, 600);
    await using other = await mountOnOtherNode(scratch.folder, mount.root);
    const otherPath = (i: number): string => join(other.at, nameOf(i));
    for (let i = 0; i < 40; i++) await mount.sizeOf(i);
    await expect.poll(() => mount.asked.listed).toBeGreaterThan(500);
    // None of these was looked up.
    await fs.writeFile(otherPath(501), 'in its place');
    await fs.rm(otherPath(502));
    await fs.writeFile(join(other.at, 'new'), 'another one');
    await fs.rename(join(other.at, 'new'), otherPath(503));
    await fs.writeFile(join(other.at, 'more'), 'more');
    // An open shows what was written before the close at once.
    expect(await fs.readFile(join(mount.at, nameOf(501)), 'utf8')).toBe('in its place');
    const sizeOf = (i: number): Promise<number> => mount.sizeOf(i).catch(() => -1);
    await expect.poll(() => sizeOf(501), pollOptions).toBe('in its place'.length);
    await expect.poll(() => sizeOf(502), pollOptions).toBe(-1);
    await expect.poll(() => sizeOf(503), pollOptions).toBe('another one'.length);
    await expect.poll(() => fs.readFile(join(mount.at, 'more'), 'utf8').catch(() => ''), pollOptions).toBe('more');
    expect([...mount.faults, ...other.faults]).toEqual([]);
  });

  test('show changes by another node between two parts of a listing soon', async () => {
    using scratch = createScratchFolder();
    let changeBetweenPages: (() => Promise<void>) | undefined;
    await using mount = await mountWithFiles(scratch.folder, 1500, {}, async () => await changeBetweenPages?.());
    await using other = await mountOnOtherNode(scratch.folder, mount.root);
    const exists = (name: string): Promise<boolean> =>
      fs.stat(join(mount.at, name)).then(
        () => true,
        () => false,
      );
    // Each part is in flight when some of its entries are removed and new ones are created.
    let parts = 0;
    changeBetweenPages = async () => {
      const part = parts++;
      await fs.rm(join(other.at, nameOf(1400 + part)));
      await fs.writeFile(join(other.at, `new ${part}`), '');
    };
    for (let i = 0; i < 1000; i++) await mount.sizeOf(i);
    changeBetweenPages = undefined;
    expect(parts).toBeGreaterThan(1);
    for (let part = 0; part < parts; part++) {
      await expect.poll(() => exists(nameOf(1400 + part)), pollOptions).toBe(false);
      await expect.poll(() => exists(`new ${part}`), pollOptions).toBe(true);
    }
    expect([...mount.faults, ...other.faults]).toEqual([]);
  });
});

describe('the credential of a listing ahead', () => {
  const directory: Attributes = {
    type: 2,
    mode: 0o751,
    links: 2,
    uid: 0,
    gid: 2000,
    used: 4096,
    major: 0,
    minor: 0,
    fsid: 1n,
    fileId: 5n,
    size: 4096,
    atime: 1,
    atimeNs: 0,
    mtime: 1,
    mtimeNs: 0,
    ctime: 1,
    ctimeNs: 0,
  };

  test.each([
    // Others may look names up, too: the kernel did not check for the group.
    { mode: 0o751, text: 'rwxr-x--x', groups: [] },
    { mode: 0o750, text: 'rwxr-x---', groups: [2000] },
    { mode: 0o755, text: 'rwxr-xr-x', groups: [] },
  ])("has the directory's group only if others may not look names up there: $text", async ({ mode, groups }) => {
    const credentials: unknown[] = [];
    const directoryAttributes = { ...directory, mode };
    const nfs = {
      getattr: async () => directoryAttributes,
      lookup: async (_directory: FileHandle, name: Buffer) => ({
        handle: Buffer.from(name),
        attributes: { ...directoryAttributes, type: 1 },
        directory: directoryAttributes,
      }),
      readdirplus: (_args: unknown, options: CallOptions) => {
        credentials.push(options.credential);
        return Promise.reject(new NfsError('READDIRPLUS', nfsStatus.ACCES, false));
      },
    } as unknown as NfsClient;
    const operations = createFileSystem({
      nfs,
      nodes: createMemoryNodes(Buffer.from('root')),
      proofs: createMemoryProofs(),
      clock: createFakeClock(),
      notify: () => undefined,
      options: { identity: asCaller },
    }) as Operations;
    const { signal } = new AbortController();
    const request: Request = { uid: 1000, gid: 1000, pid: 1, slot: 1, resent: false, signal };
    await operations.getattr(1, undefined, request);
    for (let i = 0; i < 20; i++) await operations.lookup(1, Buffer.from(`${i}`), request);
    expect(credentials).toEqual([encodeCredential({ uid: 1000, gid: 1000, groups, machine: asCaller.machine })]);
  });
});

describe('the limits of listing ahead', () => {
  const pageLength = 500;
  const request = {} as Request;

  /** Endless directories. */
  function createEndlessListing() {
    const clock = createFakeClock();
    let listed = 0;
    const readdirplus = async () => {
      const entries = Array.from({ length: pageLength }, () => ({ name: `${++listed}`, cookie: BigInt(listed) }));
      return { entries, verifier: 1n, isEnd: false };
    };
    const readdirAhead = createReaddirAhead({
      clock,
      ttlMs: 1_000,
      nfs: { readdirplus },
      server: { callOn: async (_: unknown, id: number, call: (id: number) => unknown) => await call(id) },
      attributes: { lastSeen: () => undefined, eventNumber: () => 0 },
      names: { get: () => undefined, put: () => undefined, changeCount: () => 0, markComplete: () => undefined },
    } as unknown as MountContext);
    const miss = async (directory: number, times = 1): Promise<void> => {
      for (let i = 0; i < times; i++) {
        readdirAhead.recordMiss(directory, request);
        await new Promise(setImmediate);
      }
    };
    return { ahead: readdirAhead, clock, miss, listed: () => listed };
  }

  test('stop a listing whose names are not used, and continue one whose names are', async () => {
    const { ahead, miss, listed } = createEndlessListing();
    await miss(1, 1_000);
    expect(listed()).toBeGreaterThan(2_048);
    expect(listed()).toBeLessThanOrEqual(2_048 + pageLength);
    for (let i = 0; i < 200; i++) ahead.recordHit(1);
    await miss(1, 1_000);
    // One in sixteen.
    expect(listed()).toBeGreaterThan(200 * 16);
    expect(listed()).toBeLessThanOrEqual(200 * 16 + pageLength);
  });

  test('forget the oldest of more than 64 directories', async () => {
    for (const [others, isListed] of [
      [63, true],
      [64, false],
    ] as const) {
      const { miss, listed } = createEndlessListing();
      await miss(1, 15);
      for (let other = 0; other < others; other++) await miss(100 + other);
      await miss(1);
      expect(listed() > 0).toBe(isListed);
    }
  });

  test('ignore old lookups', async () => {
    const { clock, miss, listed } = createEndlessListing();
    await miss(1, 15);
    clock.advance(1_001);
    await miss(1);
    expect(listed()).toBe(0);
    await miss(1, 15);
    expect(listed()).toBe(pageLength);
  });
});
