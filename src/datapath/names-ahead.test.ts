import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createGround } from '#testing/ground.ts';
import { asCaller, mountNfs } from '#testing/nfs-mount.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';

describe.skipIf(needs('fuse', 'ganesha'))('names that are looked up one after the other', () => {
  const it = exportedByGanesha();
  const nameOf = (i: number): string => `file ${i}`;

  /** A mount of a directory with so many files, each as long as its number; and what the server is asked for. */
  async function mounted(folder: string, files: number, options: Parameters<typeof mountNfs>[2] = {}) {
    const name = `names-${files}-${Math.random()}`;
    const made = await it.nfs.mkdir(it.directory, name, { mode: 0o711 });
    await Promise.all(
      Array.from({ length: files }, async (_, i) => {
        const { handle } = await it.nfs.create(made.handle, nameOf(i), { mode: 'guarded', set: { mode: 0o644 } });
        await it.nfs.write(handle, 0, Buffer.alloc(i % 1000), 2);
      }),
    );
    const asked = { lookups: 0, listed: 0 };
    const nfs: NfsClient = {
      ...it.nfs,
      lookup: (...args) => {
        asked.lookups++;
        return it.nfs.lookup(...args);
      },
      readdirplus: async (...args) => {
        const page = await it.nfs.readdirplus(...args);
        asked.listed += page.entries.length;
        return page;
      },
    };
    const mount = await mountNfs(folder, { nfs, root: made.handle }, options);
    return Object.assign(mount, {
      asked,
      sizeOf: async (i: number) => (await fs.stat(join(mount.at, nameOf(i)))).size,
    });
  }

  test('are listed ahead: few of them are asked for, and each is what it is', async () => {
    using ground = createGround();
    await using mount = await mounted(ground.folder, 1500);
    for (let i = 0; i < 1500; i++) expect(await mount.sizeOf(i)).toBe(i % 1000);
    expect(mount.asked.lookups).toBeLessThan(500);
    await expect(fs.stat(join(mount.at, 'not there'))).rejects.toThrow('ENOENT');
    expect(mount.faults).toEqual([]);
  });

  test('are not listed for a few, nor all of many for some', async () => {
    using ground = createGround();
    await using mount = await mounted(ground.folder, 6000);
    for (let i = 0; i < 10; i++) expect(await mount.sizeOf(i * 100)).toBe((i * 100) % 1000);
    expect(mount.asked.listed).toBe(0);
    for (let i = 10; i < 40; i++) expect(await mount.sizeOf(i * 100)).toBe((i * 100) % 1000);
    // A page may be larger than what is still to be listed.
    expect(mount.asked.listed).toBeLessThan(40 * 32 + 1000);
  });

  test('are not listed where nothing is to be relied on', async () => {
    using ground = createGround();
    await using mount = await mounted(ground.folder, 100, { cacheMs: 0 });
    for (let i = 0; i < 100; i++) await mount.sizeOf(i);
    expect(mount.asked.listed).toBe(0);
    expect(mount.asked.lookups).toBeGreaterThanOrEqual(100);
  });

  test('are what they are, where they may be looked up and not listed', async () => {
    using ground = createGround();
    await using mount = await mounted(ground.folder, 100, { identity: { ...asCaller, squash: 'all' } });
    for (let i = 0; i < 100; i++) expect(await mount.sizeOf(i)).toBe(i);
    expect(mount.asked.listed).toBe(0);
    expect(mount.asked.lookups).toBeGreaterThanOrEqual(100);
    expect(mount.faults).toEqual([]);
  });

  test('what is made and removed meanwhile is seen at once', async () => {
    using ground = createGround();
    await using mount = await mounted(ground.folder, 600);
    for (let i = 0; i < 600; i++) {
      if (i % 3 === 0) await fs.rm(join(mount.at, nameOf(i)));
      if (i % 3 === 1) await fs.writeFile(join(mount.at, nameOf(i)), 'ten bytes.');
      if (i % 3 === 0) await expect(mount.sizeOf(i)).rejects.toThrow('ENOENT');
      else expect(await mount.sizeOf(i)).toBe(i % 3 === 1 ? 10 : i);
    }
    expect((await fs.readdir(mount.at)).length).toBe(400);
    expect(mount.faults).toEqual([]);
  });
});
