import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { type Mounted, startOwnServer } from '#testing/own-nfs-server.ts';
import type { EntryPlus, FileHandle } from '../structures.ts';
import { createNode, type Node } from './nodes.ts';
import { createReaddirCache, type Page } from './readdir-cache.ts';

/** A clock that advances by `advance`. Its wall clock is a second ahead, so that no directory seems to have just changed. */
function createSteppedClock() {
  let elapsedMs = 0;
  const clock = systemClock();
  return {
    advance: (ms: number) => {
      elapsedMs += ms;
    },
    clock: { ...clock, now: () => clock.now() + 1000, elapsed: () => elapsedMs },
  };
}

async function serve() {
  const { clock, advance } = createSteppedClock();
  const own = await startOwnServer({ clock });
  fs.writeFileSync(join(own.directory, 'f'), '');
  fs.linkSync(join(own.directory, 'f'), join(own.directory, 'other name'));
  fs.mkdirSync(join(own.directory, 'd'));
  return { own, advance, mounted: await own.mount() };
}

async function list({ nfs, root }: Mounted, directory = root): Promise<ReadonlyMap<string, EntryPlus>> {
  const { entries } = await nfs.readdirplus({ directory, cookie: 0n, verifier: 0n, bytes: 8192 });
  // Copies the getters' values, so that entries can be compared.
  return new Map(
    entries.map(({ fileId, name, bytes, cookie, attributes, handle }) => [
      name,
      { fileId, name, bytes, cookie, attributes, handle },
    ]),
  );
}

const handleOf = (listed: ReadonlyMap<string, EntryPlus>, name: string): FileHandle =>
  listed.get(name)?.handle ?? Buffer.alloc(0);

describe.skipIf(lacks('linux'))('a cached listing', () => {
  test.each<[string, (mounted: Mounted, f: FileHandle, d: FileHandle) => Promise<unknown>]>([
    ['WRITE', ({ nfs }, f) => nfs.write(f, 0, Buffer.from('text'), 0)],
    [
      'WRITE to an open file',
      async (mounted, f) => {
        await mounted.nfs.write(f, 0, Buffer.from('text'), 0);
        await list(mounted);
        await mounted.nfs.write(f, 0, Buffer.from('much longer text'), 0);
      },
    ],
    ['SETATTR', ({ nfs }, f) => nfs.setattr(f, { mode: 0o600 })],
    ['MKDIR below', ({ nfs }, _f, d) => nfs.mkdir(d, 'below', {})],
    ['CREATE that truncates', ({ nfs, root }) => nfs.create(root, 'f', { mode: 'unchecked', set: { size: 0 } })],
  ])('shows changes of a client by %s at once', async (_name, change) => {
    const { mounted, own } = await serve();
    fs.writeFileSync(join(own.directory, 'f'), 'some text');
    const before = await list(mounted);
    await change(mounted, handleOf(before, 'f'), handleOf(before, 'd'));
    const after = await list(mounted);
    expect([...after.keys()].sort()).toEqual(['.', '..', 'd', 'f', 'other name']);
    expect(after).not.toEqual(before);
    for (const { handle, attributes } of after.values())
      expect(attributes).toEqual(await mounted.nfs.getattr(handle ?? Buffer.alloc(0)));
  });

  test.each<[string, (mounted: Mounted, otherDirectory: FileHandle) => Promise<unknown>]>([
    ['REMOVE', ({ nfs }, e) => nfs.remove(e, 'third')],
    ['RENAME', ({ nfs }, e) => nfs.rename({ directory: e, name: 'third' }, { directory: e, name: 'fourth' })],
    ['LINK', ({ nfs }, e) => nfs.lookup(e, 'third').then((f) => nfs.link(f.handle, { directory: e, name: 'fourth' }))],
  ])('shows changes of a client by %s of another name in another directory at once', async (_name, change) => {
    const { mounted, own } = await serve();
    fs.mkdirSync(join(own.directory, 'e'));
    for (const path of ['d/f', 'e/third']) fs.linkSync(join(own.directory, 'f'), join(own.directory, path));
    const [here, otherDirectory] = [
      await mounted.nfs.lookup(mounted.root, 'd'),
      await mounted.nfs.lookup(mounted.root, 'e'),
    ];
    const before = await list(mounted, here.handle);
    await change(mounted, otherDirectory.handle);
    const after = await list(mounted, here.handle);
    expect(after.get('f')?.attributes).not.toEqual(before.get('f')?.attributes);
    expect(after.get('f')?.attributes).toEqual(await mounted.nfs.getattr(handleOf(after, 'f')));
  });

  test('shows attributes that other programs changed after a second, and changed names immediately', async () => {
    const { mounted, own, advance } = await serve();
    const before = await list(mounted);
    fs.chmodSync(join(own.directory, 'f'), 0o611);
    advance(999);
    expect(await list(mounted)).toEqual(before);
    advance(1);
    expect((await list(mounted)).get('f')?.attributes?.mode).toBe(0o611);
    fs.renameSync(join(own.directory, 'f'), join(own.directory, 'g'));
    expect([...(await list(mounted)).keys()].sort()).toEqual(['.', '..', 'd', 'g', 'other name']);
  });
});

describe('cached pages', () => {
  const stats = { mtimeNs: 1n, ctimeNs: 1n } as fs.BigIntStats;
  const directory: Node = createNode(1n, 1n, undefined, '');
  const page = (length: number): Page => ({ bytes: Buffer.alloc(length), nodes: [] });

  test('are evicted when they take too much memory, the oldest first', () => {
    const pages = createReaddirCache({ changeCount: 0 }, () => 0);
    for (let i = 0; i < 100; i++) pages.keep(directory, `${i}`, stats, page(100_000));
    const kept = Array.from({ length: 100 }, (_, i) => pages.find(directory, `${i}`, stats) !== undefined);
    expect(kept.indexOf(true)).toBe(100 - Math.floor((8 * 1024 * 1024) / 100_000));
    expect(kept.lastIndexOf(false)).toBe(kept.indexOf(true) - 1);
  });

  test('of an earlier state of the directory are not used', () => {
    const pages = createReaddirCache({ changeCount: 0 }, () => 0);
    pages.keep(directory, 'q', stats, page(4));
    expect(pages.find(directory, 'q', stats)).toBeDefined();
    expect(pages.find(directory, 'q', { ...stats, mtimeNs: 2n } as fs.BigIntStats)).toBeUndefined();
    expect(pages.find(directory, 'q', { ...stats, ctimeNs: 2n } as fs.BigIntStats)).toBeUndefined();
  });
});
