import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import {
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  rmdir,
  statfs,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { type LocalStoreUnderTest, localStore } from '#testing/local-store.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';

let storeUnderTest: LocalStoreUnderTest;
let outside: string;

beforeEach(async () => {
  storeUnderTest = await localStore();
  outside = await mkdtemp(join(tmpdir(), 'stowage-outside-'));
  await writeFile(join(outside, 'precious'), 'precious');
});
afterEach(async () => {
  await storeUnderTest[Symbol.asyncDispose]();
  expect(await readFile(join(outside, 'precious'), 'utf8')).toBe('precious');
  expect(await readdir(outside)).toEqual(['precious']);
  await rm(outside, { recursive: true });
});

const create = (name: string, more: Partial<VolumeSpec> = {}): Promise<Volume> =>
  storeUnderTest.store.create(volumeSpec(name, more), scope);

async function reasonOf(work: Promise<unknown>): Promise<string> {
  const thrown = await work.then(
    () => undefined,
    (cause: unknown) => cause,
  );
  return thrown instanceof StowageError ? `${thrown.code} ${thrown.reason}` : `not a StowageError: ${String(thrown)}`;
}

describe('a symbolic link', () => {
  test('at the path of new data is refused and not touched', async () => {
    await symlink(outside, storeUnderTest.at('a'));
    expect(await reasonOf(create('a'))).toBe('exists directory-unrecorded');
    expect(await readlink(storeUnderTest.at('a'))).toBe(outside);
    expect(await readdir(storeUnderTest.root)).toEqual(['.stowage', 'a']);
    expect(await storeUnderTest.store.adoption.adoptable(scope)).toEqual([
      { name: 'a', reason: 'it is a symbolic link' },
    ]);
    expect(await reasonOf(storeUnderTest.store.adoption.adopt(volumeName('a'), volumeSpec('a'), scope))).toBe(
      'conflict not-adoptable',
    );
  });

  test('that dangles makes the name unavailable, too', async () => {
    await symlink('/nowhere', storeUnderTest.at('a'));
    expect(await reasonOf(create('a'))).toBe('exists directory-unrecorded');
  });

  test('at the path of existing data is never followed, and can be deleted', async () => {
    const made = await create('a');
    await rmdir(storeUnderTest.at('a'));
    await symlink(outside, storeUnderTest.at('a'));
    expect(await storeUnderTest.store.get(made.name, scope)).toMatchObject({
      condition: 'missing',
      detail: `${storeUnderTest.at('a')} is a symbolic link`,
    });
    expect(await reasonOf(storeUnderTest.store.source(made, scope))).toBe('conflict volume-data-unusable');
    expect(await reasonOf(storeUnderTest.store.usage(made, scope))).toBe('conflict volume-data-unusable');
    expect(await reasonOf(create('a'))).toBe('conflict volume-data-unusable');
    await storeUnderTest.store.delete(made, scope);
    await storeUnderTest.store.housekeeping.reclaim(scope);
    expect(await readdir(storeUnderTest.root)).toEqual(['.stowage']);
    expect(await readdir(storeUnderTest.at('.stowage', 'deleting'))).toEqual([]);
  });

  test('at the path of a record is not read', async () => {
    const made = await create('b');
    await symlink(storeUnderTest.at('b.meta'), storeUnderTest.at('a.meta'));
    expect(await reasonOf(storeUnderTest.store.get(volumeName('a'), scope))).toBe('conflict record-unreadable');
    expect(await reasonOf(create('a'))).toBe('conflict record-unreadable');
    expect(await reasonOf(storeUnderTest.store.delete({ ...made, name: volumeName('a') }, scope))).toBe(
      'conflict record-unreadable',
    );
    expect(await Array.fromAsync(storeUnderTest.store.list(scope))).toEqual([made]);
    await storeUnderTest.store.housekeeping.sweep(scope);
    expect(await storeUnderTest.store.housekeeping.orphans(scope)).toMatchObject([
      { kind: 'unreadable-record', name: 'a' },
    ]);
  });

  test('at the path of a record is not read even if it leads to a valid record', async () => {
    await create('a');
    await rename(storeUnderTest.at('a.meta'), storeUnderTest.at('elsewhere'));
    await symlink('elsewhere', storeUnderTest.at('a.meta'));
    const failure = storeUnderTest.store.get(volumeName('a'), scope);
    await expect(failure).rejects.toThrow(
      `the record ${storeUnderTest.at('a.meta')} cannot be read: it is a symbolic link`,
    );
  });

  test('inside a volume is removed with it, and its target is not', async () => {
    const made = await create('a');
    await mkdir(storeUnderTest.at('a', 'd', 'e'), { recursive: true });
    await symlink(outside, storeUnderTest.at('a', 'link'));
    await symlink(outside, storeUnderTest.at('a', 'd', 'e', 'link'));
    const usage = await storeUnderTest.store.usage(made, scope);
    expect(usage).toMatchObject({ files: 4n, complete: true });
    await storeUnderTest.store.delete(made, scope);
    await storeUnderTest.store.housekeeping.reclaim(scope);
    expect(await readdir(storeUnderTest.at('.stowage', 'deleting'))).toEqual([]);
  });
});

describe('a record', () => {
  const validRecord = (): Record<string, unknown> => ({
    version: 1,
    id: newVolumeId(),
    name: 'a',
    access: 'filesystem',
    labels: {},
    requestId: 'r',
    createdAt: 0,
    revision: 1,
    instance: 'instance-1',
  });

  test.each<[string, Record<string, unknown>]>([
    ['id', { id: '../../etc' }],
    ['id', { id: undefined }],
    ['name', { name: '../b' }],
    ['bytes', { bytes: -1 }],
    ['bytes', { bytes: '99999999999999999999' }],
    ['access', { access: 'tape' }],
    ['labels', { labels: [] }],
    ['labels', { labels: { a: 1 } }],
    ['requestId', { requestId: null }],
    ['createdAt', { createdAt: 'now' }],
    ['revision', { revision: -1 }],
    ['instance', { instance: 1 }],
    ['movingTo', { movingTo: '..' }],
    ['deletedAt', { deletedAt: 'x' }],
  ])('with an invalid %s is reported and kept: %j', async (field, change) => {
    await mkdir(storeUnderTest.at('a'));
    await writeFile(storeUnderTest.at('a.meta'), JSON.stringify({ ...validRecord(), ...change }));
    expect(await Array.fromAsync(storeUnderTest.store.list(scope))).toEqual([]);
    await storeUnderTest.store.housekeeping.sweep(scope);
    expect(await storeUnderTest.store.housekeeping.orphans(scope)).toMatchObject([
      {
        kind: 'unreadable-record',
        detail: `the record ${storeUnderTest.at('a.meta')} cannot be read: its field ${field} is missing or wrong`,
      },
    ]);
    expect(await readdir(storeUnderTest.root)).toEqual(['.stowage', 'a', 'a.meta']);
  });

  test('copied from another volume does not make a second volume with the same id', async () => {
    await mkdir(storeUnderTest.at('a'));
    await writeFile(storeUnderTest.at('a.meta'), JSON.stringify({ ...validRecord(), name: 'b' }));
    expect(await reasonOf(storeUnderTest.store.get(volumeName('a'), scope))).toBe('conflict record-unreadable');
  });

  test('of a newer format is refused with the reason format-newer', async () => {
    await mkdir(storeUnderTest.at('a'));
    await writeFile(storeUnderTest.at('a.meta'), JSON.stringify({ ...validRecord(), version: 2 }));
    expect(await reasonOf(storeUnderTest.store.get(volumeName('a'), scope))).toBe('unsupported format-newer');
    expect(await reasonOf(create('a'))).toBe('unsupported format-newer');
  });

  test('of a gigabyte is not read', async () => {
    await mkdir(storeUnderTest.at('a'));
    await writeFile(storeUnderTest.at('a.meta'), JSON.stringify(validRecord()));
    execFileSync('truncate', ['-s', '1G', storeUnderTest.at('a.meta')]);
    const before = process.memoryUsage().rss;
    expect(await reasonOf(storeUnderTest.store.get(volumeName('a'), scope))).toBe('conflict record-unreadable');
    expect(process.memoryUsage().rss - before).toBeLessThan(50e6);
  });

  test('of the maximum size is read', async () => {
    const labels = { long: 'x'.repeat(60_000) };
    const made = await create('a', { labels });
    expect((await storeUnderTest.store.get(made.name, scope))?.volume).toEqual(made);
    expect(await reasonOf(create('b', { labels: { long: 'x'.repeat(70_000) } }))).toBe('invalid labels-too-large');
    expect(await storeUnderTest.store.names(scope)).toEqual(['a']);
  });

  test('that is a FIFO does not block the store, and is left alone', async () => {
    execFileSync('mkfifo', [storeUnderTest.at('a.meta')]);
    const store = await storeUnderTest.reopen();
    await store.housekeeping.sweep(scope);
    const failure = store.get(volumeName('a'), scope);
    await expect(failure).rejects.toThrow(
      `the record ${storeUnderTest.at('a.meta')} cannot be read: it is not a plain file`,
    );
    expect(await reasonOf(create('a'))).toBe('conflict record-unreadable');
    expect(await readdir(storeUnderTest.root)).toEqual(['.stowage', 'a.meta']);
  });

  test.skipIf(lacks('root'))('that is a device or a socket is refused, and the store opens', async () => {
    execFileSync('mknod', [storeUnderTest.at('a.meta'), 'c', '1', '5']);
    const server = createServer().listen(storeUnderTest.at('b.meta'));
    await once(server, 'listening');
    try {
      const store = await storeUnderTest.reopen();
      await store.housekeeping.sweep(scope);
      for (const name of ['a', 'b']) {
        expect(await reasonOf(store.get(volumeName(name), scope))).toBe('conflict record-unreadable');
      }
      expect(await Array.fromAsync(store.list(scope))).toEqual([]);
    } finally {
      server.close();
    }
  });

  test.each([
    'my precious notes\n',
    'artist: x\n',
    '{"title":"x"',
    '{ "version": 1, "id": "sv1-',
    '{"version":"3.2"',
    '{"version":1,"id":"sv1-x"} and more',
    '{"version":1,"id":"sv1-x",\n"name"',
    '\0\0\0',
  ])('that is a user’s own file is never removed: %j', async (text) => {
    await writeFile(storeUnderTest.at('a.meta'), text);
    const store = await storeUnderTest.reopen();
    await store.housekeeping.sweep(scope);
    expect(await reasonOf(create('a'))).toBe('conflict record-unreadable');
    expect(await reasonOf(store.get(volumeName('a'), scope))).toBe('conflict record-unreadable');
    expect(await readFile(storeUnderTest.at('a.meta'), 'utf8')).toBe(text);
    expect(await store.housekeeping.orphans(scope)).toMatchObject([{ kind: 'unreadable-record', name: 'a' }]);
  });

  test('truncated at any byte, without data, counts as an interrupted creation', async () => {
    await create('a', { labels: { 'a"{b': 'c}\\"}', ü: '\n' } });
    const whole = await readFile(storeUnderTest.at('a.meta'));
    await rmdir(storeUnderTest.at('a'));
    // Without its last byte, the newline, the record is still complete.
    for (let length = 0; length < whole.length - 1; length++) {
      await writeFile(storeUnderTest.at('a.meta'), whole.subarray(0, length));
      await storeUnderTest.store.housekeeping.sweep(scope);
      expect(await readdir(storeUnderTest.root), whole.toString('utf8', 0, length)).toEqual(['.stowage']);
    }
  });

  test('that is a directory is refused', async () => {
    await mkdir(storeUnderTest.at('a.meta'));
    expect(await reasonOf(storeUnderTest.store.get(volumeName('a'), scope))).toBe('conflict record-unreadable');
    expect(await reasonOf(create('a'))).toBe('conflict record-unreadable');
  });
});

describe('other files in the root', () => {
  test('are offered for adoption, or listed with the reason against it', async () => {
    await create('mine');
    for (const name of ['good', 'a..b', '.hidden', 'lost+found', 'sp ace', 'x.meta'])
      await mkdir(storeUnderTest.at(name));
    await writeFile(storeUnderTest.at('file'), '');
    const found = (await storeUnderTest.store.adoption.adoptable(scope)).toSorted((a, b) => (a.name < b.name ? -1 : 1));
    expect(found).toEqual([
      { name: '.hidden', reason: "'.hidden' cannot be a volume name: it must begin with a letter or a digit" },
      { name: 'a..b', reason: "'a..b' cannot be a volume name: it contains '..'" },
      { name: 'file', reason: 'it is not a directory' },
      { name: 'good' },
      { name: 'lost+found', reason: 'it belongs to the file system' },
      {
        name: 'sp ace',
        reason: "'sp ace' cannot be a volume name: only the letters A-Z a-z, digits, and _ . - may be used",
      },
      {
        name: 'x.meta',
        reason: "'x.meta' cannot be a volume name: names that end in '.meta' are reserved for Stowage's own records",
      },
    ]);
  });
});

describe('a directory that is a store itself', () => {
  beforeEach(async () => {
    await mkdir(storeUnderTest.at('inner'));
    await using _inner = await localStore({}, storeUnderTest.at('inner'));
  });

  test('cannot be adopted', async () => {
    const why = 'it is a store itself: it contains .stowage';
    expect(await storeUnderTest.store.adoption.adoptable(scope)).toEqual([{ name: 'inner', reason: why }]);
    const adopting = storeUnderTest.store.adoption.adopt(volumeName('inner'), volumeSpec('inner'), scope);
    await expect(adopting).rejects.toThrow(`${storeUnderTest.at('inner')} cannot become a volume: ${why}`);
    expect(await storeUnderTest.store.housekeeping.orphans(scope)).toMatchObject([{ kind: 'stranger', name: 'inner' }]);
  });

  test('is not a volume of a read-only store', async () => {
    await mkdir(storeUnderTest.at('other'));
    const store = await storeUnderTest.reopenReadOnly();
    expect(await store.names(scope)).toEqual(['other']);
    expect(await store.get(volumeName('inner'), scope)).toBeUndefined();
    expect((await Array.fromAsync(store.list(scope))).map(({ name }) => name)).toEqual(['other']);
  });
});

describe.skipIf(lacks('mount'))('on a small disk', () => {
  let disk: string;
  let store: LocalStoreUnderTest;

  beforeEach(async () => {
    disk = await mkdtemp(join(tmpdir(), 'stowage-disk-'));
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=256k,nr_inodes=40', 'stowage-test', disk]);
    store = await localStore({}, disk);
  });
  afterEach(async () => {
    await store[Symbol.asyncDispose]();
    execFileSync('umount', [disk]);
    await rmdir(disk);
  });

  async function fill(): Promise<Volume[]> {
    const made: Volume[] = [];
    for (let i = 0; i < 100; i++) {
      const result = await store.store.create(volumeSpec(`v${i}`), scope).catch((cause: unknown) => cause);
      if (result instanceof StowageError) {
        expect([result.code, result.reason, result.message]).toEqual([
          'exhausted',
          'store-full',
          `creating volume 'v${i}' in store test failed: no space left on the file system of ${disk}`,
        ]);
        return made;
      }
      made.push(result as Volume);
    }
    throw new Error('it never became full');
  }

  test('a full store reports store-full, keeps its volumes, and can delete them, also after a restart', async () => {
    const made = await fill();
    expect(made.length).toBeGreaterThan(3);
    expect((await store.store.names(scope)).toSorted()).toEqual(made.map(({ name }) => name).toSorted());
    expect(await store.store.housekeeping.orphans(scope)).toEqual([]);
    const reopened = await store.reopen();
    await reopened.housekeeping.sweep(scope);
    for (const volume of made) await reopened.delete(volume, scope);
    expect(await reopened.names(scope)).toEqual([]);
    expect((await reopened.create(volumeSpec('again'), scope)).name).toBe('again');
  });

  test.each(['bytes', 'inodes'])(
    'with no %s left, volumes can still be deleted, released and moved to the trash',
    async (what) => {
      // Large enough to have a reserve.
      execFileSync('mount', ['-o', 'remount,size=8m,nr_inodes=100', disk]);
      const largerStore = await store.reopen();
      await largerStore.housekeeping.reclaim(scope);
      const made = await Promise.all(['a', 'b', 'c', 'd'].map((name) => largerStore.create(volumeSpec(name), scope)));
      const [a, b, c, d] = made as [Volume, Volume, Volume, Volume];
      await writeFile(join(disk, 'b', 'file'), '');
      await exhaust(what);
      expect(await reasonOf(largerStore.create(volumeSpec('e'), scope))).toBe('exhausted store-full');
      expect(await reasonOf(largerStore.label(a, { a: 'b' }, scope))).toBe('exhausted store-full');
      expect(await reasonOf(largerStore.rename(a, volumeName('z'), scope))).toBe('exhausted store-full');
      for (const volume of [a, b]) await largerStore.trash.put(volume, keptForAWeek(1234), scope);
      await largerStore.adoption.release(c, scope);
      expect((await largerStore.trash.list(scope)).map(({ deletedAt }) => deletedAt)).toEqual([1234, 1234]);
      await largerStore.trash.purge(a.id, scope);
      await largerStore.delete(d, scope);
      expect(await largerStore.names(scope)).toEqual([]);
      const reserve = join(disk, '.stowage', 'reserve');
      expect((await readdir(reserve)).length).toBeLessThan(8);
      await rm(join(disk, 'b-fill'), { recursive: true });
      await largerStore.housekeeping.reclaim(scope);
      expect(await readdir(reserve)).toHaveLength(8);
      expect((await largerStore.trash.restore(b.id, b.name, scope)).id).toBe(b.id);
    },
  );

  async function exhaust(what: string): Promise<void> {
    await mkdir(join(disk, 'b-fill'));
    await expect(async () => {
      if (what === 'bytes') await writeFile(join(disk, 'b-fill', 'file'), Buffer.alloc(16 * 1024 * 1024));
      else for (let i = 0; ; i++) await writeFile(join(disk, 'b-fill', `${i}`), '');
    }).rejects.toMatchObject({ code: 'ENOSPC' });
  }

  test('with no bytes left, no half-written record remains', async () => {
    const volume = await store.store.create(volumeSpec('a'), scope);
    await writeFile(join(disk, 'a', 'fill'), Buffer.alloc(1024 * 1024)).catch(() => undefined);
    expect(await reasonOf(store.store.create(volumeSpec('b'), scope))).toBe('exhausted store-full');
    expect(await reasonOf(store.store.label(volume, { a: 'b' }, scope))).toBe('exhausted store-full');
    expect((await readdir(disk)).toSorted()).toEqual(['.stowage', 'a', 'a.meta']);
    expect((await store.store.get(volume.name, scope))?.volume).toEqual(volume);
    const check = await store.store.check(scope);
    expect(check.ok).toBe(false);
    expect(check.steps.filter(({ ok }) => !ok).map(({ step }) => step)).toEqual(['writable', 'room']);
  });

  test('a store on a read-only mount is refused, unless the store is read-only too', async () => {
    const volume = await store.store.create(volumeSpec('a'), scope);
    await store.close();
    execFileSync('mount', ['-o', 'remount,ro', disk]);
    try {
      expect(await reasonOf(store.reopen())).toBe('denied store-file-system-read-only');
      const reader = await store.reopenReadOnly();
      expect(await reader.get(volume.name, scope)).toEqual({ volume, condition: 'ok' });
      expect((await reader.check(scope)).ok).toBe(true);
    } finally {
      execFileSync('mount', ['-o', 'remount,rw', disk]);
    }
  });

  test.skipIf(lacks('xfs', 'ext4'))('a full store leaves nothing of an image that did not fit', async () => {
    await using images = await localStore({ layout: 'image' }, await mkdtemp(join(disk, 'images-')));
    // The log of xfs never fits. The tables of ext4 do not fit only if the disk is nearly full.
    for (const bytes of [300n, 20n].map((size) => size * 1024n * 1024n)) {
      expect(await reasonOf(images.store.create(volumeSpec('a', { bytes }), scope))).toBe('exhausted store-full');
      expect(await readdir(images.root)).toEqual(['.stowage']);
      expect(await readdir(images.at('.stowage', 'tmp'))).toEqual([]);
      const { bavail } = await statfs(disk);
      await writeFile(join(disk, 'fill'), Buffer.alloc((bavail - 3) * 4096));
    }
  });

  test('a mount inside a deleted volume is neither crossed nor emptied', async () => {
    const volume = await store.store.create(volumeSpec('a'), scope);
    await mkdir(join(disk, 'a', 'd', 'mnt'), { recursive: true });
    execFileSync('mount', ['--bind', outside, join(disk, 'a', 'd', 'mnt')]);
    await store.store.delete(volume, scope);
    const deletingFolder = join(disk, '.stowage', 'deleting');
    try {
      expect((await store.store.usage(await store.store.create(volumeSpec('b'), scope), scope)).complete).toBe(true);
      await store.store.housekeeping.reclaim(scope);
      expect(await store.store.names(scope)).toEqual(['b']);
    } finally {
      for (const name of await readdir(deletingFolder)) execFileSync('umount', [join(deletingFolder, name, 'mnt')]);
    }
    await store.store.housekeeping.reclaim(scope);
    expect(await readdir(deletingFolder)).toEqual([]);
  });

  test('deleted data that cannot be removed are reported with an action until they are gone', async () => {
    const volume = await store.store.create(volumeSpec('a'), scope);
    await mkdir(join(disk, 'a', 'mnt'));
    execFileSync('mount', ['--bind', outside, join(disk, 'a', 'mnt')]);
    await store.store.delete(volume, scope);
    const path = join(disk, '.stowage', 'deleting', volume.id);
    try {
      expect(await store.store.housekeeping.orphans(scope)).toEqual([]);
      await store.store.housekeeping.reclaim(scope);
      expect(await store.store.housekeeping.orphans(scope)).toEqual([
        {
          store: 'test',
          kind: 'leftover',
          name: path,
          detail: expect.stringMatching(/^the data of a deleted volume could not be removed: Error: EBUSY: /),
          action: `Find what protects it (lsattr -aR ${path}; findmnt -R; its owner) and undo that: Stowage removes it with the next deletion, or when it starts.`,
        },
      ]);
    } finally {
      execFileSync('umount', [join(path, 'mnt')]);
    }
    await store.store.housekeeping.reclaim(scope);
    expect(await store.store.housekeeping.orphans(scope)).toEqual([]);
  });

  test('a volume with a mount on its data cannot be deleted', async () => {
    const volume = await store.store.create(volumeSpec('a'), scope);
    execFileSync('mount', ['--bind', outside, join(disk, 'a')]);
    try {
      expect(await reasonOf(store.store.delete(volume, scope))).toBe('in-use volume-data-busy');
    } finally {
      execFileSync('umount', [join(disk, 'a')]);
    }
    expect((await store.store.get(volume.name, scope))?.condition).toBe('ok');
  });
});
