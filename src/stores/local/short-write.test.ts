import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { StowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { type LocalStoreUnderTest, localStore } from '#testing/local-store.ts';
import { mountImage } from '#testing/loop-mount.ts';
import { fillUpToOneBlock, manyLabels, removeFiller } from '#testing/nearly-full-disk.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { volumeSpec } from '#testing/volume-spec.ts';

const mountDisk = {
  tmpfs: (_ground: ScratchFolder, at: string): void => {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'stowage-test', at]);
  },
  ext4: (ground: ScratchFolder, at: string): void => {
    // With data=journal ext4 writes block by block; otherwise recent kernels write several blocks at once, all or none.
    mountImage(ground.image('disk.img', 32, 'ext4'), at, 'data=journal');
  },
} as const;

describe.skipIf(lacks('root', 'mount', 'loop', 'ext4'))('with one free block left', () => {
  describe.each(['tmpfs', 'ext4'] as const)('on %s', (kind) => {
    let ground: ScratchFolder;
    let disk: string;
    let storeUnderTest: LocalStoreUnderTest;
    let volume: Volume;

    beforeEach(async () => {
      ground = createScratchFolder();
      disk = join(ground.folder, 'disk');
      mkdirSync(disk);
      mountDisk[kind](ground, disk);
      storeUnderTest = await localStore({}, disk);
      volume = await storeUnderTest.store.create(volumeSpec('a', { labels: manyLabels }), scope);
      await storeUnderTest.mark(volume, 'precious');
    });
    afterEach(async () => {
      await storeUnderTest[Symbol.asyncDispose]();
      ground[Symbol.dispose]();
    });

    const expectIntact = async (): Promise<void> => {
      expect(await storeUnderTest.store.get(volume.name, scope)).toEqual({ volume, condition: 'ok' });
      expect(await storeUnderTest.readMark(volume)).toBe('precious');
      expect(await readdir(join(disk, '.stowage', 'tmp'))).toEqual([]);
    };

    const reasonOf = (work: Promise<unknown>): Promise<unknown> =>
      work.then(
        () => 'done',
        (cause: StowageError) => cause.reason,
      );

    test('a move to the trash is refused, leaves the volume intact, and succeeds once there is room', async () => {
      fillUpToOneBlock(disk);
      expect(await reasonOf(storeUnderTest.store.trash.put(volume, { deletedAt: 1234, retention: 1000 }, scope))).toBe(
        'store-full',
      );
      await expectIntact();
      expect(await storeUnderTest.store.trash.list(scope)).toEqual([]);
      removeFiller(disk);
      await storeUnderTest.store.trash.put(volume, { deletedAt: 1234, retention: 1000 }, scope);
      expect(await storeUnderTest.store.trash.list(scope)).toMatchObject([
        { volume: { id: volume.id }, deletedAt: 1234 },
      ]);
      expect((await storeUnderTest.store.trash.restore(volume.id, volume.name, scope)).labels).toEqual(manyLabels);
      expect(await storeUnderTest.readMark(volume)).toBe('precious');
    });

    test('a move to the trash succeeds with the space that the store keeps in reserve', async () => {
      await storeUnderTest.store.housekeeping.reclaim(scope);
      expect(await readdir(join(disk, '.stowage', 'reserve'))).toHaveLength(8);
      fillUpToOneBlock(disk);
      await storeUnderTest.store.trash.put(volume, { deletedAt: 1234, retention: 1000 }, scope);
      expect(await storeUnderTest.store.trash.list(scope)).toMatchObject([
        { volume: { id: volume.id }, deletedAt: 1234 },
      ]);
      const reopened = await storeUnderTest.reopen();
      await reopened.housekeeping.sweep(scope);
      expect(await reopened.trash.list(scope)).toHaveLength(1);
      await reopened.trash.purge(volume.id, scope);
      await reopened.housekeeping.reclaim(scope);
      expect(await reopened.trash.list(scope)).toEqual([]);
      expect(await readdir(join(disk, '.stowage', 'trash'))).toEqual([]);
    });

    test('no other change of a record truncates it', async () => {
      fillUpToOneBlock(disk);
      const before = readFileSync(join(disk, 'a.meta'), 'utf8');
      const { store } = storeUnderTest;
      expect(await reasonOf(store.label(volume, { ...manyLabels, more: 'x' }, scope))).toBe('store-full');
      expect(await reasonOf(store.adoption.claim(volume, 'instance-2', scope))).toBe('store-full');
      expect(await reasonOf(store.expand(volume, 1n << 20n, scope))).toBe('store-full');
      expect(await reasonOf(store.rename(volume, volumeSpec('b').name, scope))).toBe('store-full');
      expect(await reasonOf(store.adoption.release(volume, scope))).toBe('store-full');
      expect(await reasonOf(store.create(volumeSpec('c', { labels: manyLabels }), scope))).toBe('store-full');
      await expectIntact();
      expect(readFileSync(join(disk, 'a.meta'), 'utf8')).toBe(before);
      expect(await store.names(scope)).toEqual(['a']);
      expect(await store.housekeeping.orphans(scope)).toMatchObject([{ kind: 'stranger', name: 'filler' }]);
    });
  });
});
