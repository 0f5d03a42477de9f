import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Source } from '#core/model.ts';
import { localFiles } from '#stores/local/files.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { newMeta } from './create.ts';
import type { Files } from './files.ts';
import { createDirectoryLayout } from './layout-directory.ts';
import type { StoreRoot } from './store-root.ts';

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'stowage-layout-'));
  await mkdir(join(root, 'deleting'));
  onTestFinished(() => rm(root, { recursive: true }));
});

const dataPath = (): string => join(root, 'a');

function discardIfEmpty(files: Partial<Files> = {}): Promise<void> {
  const ownPath = (...parts: readonly string[]): string => join(root, ...parts);
  const storeRoot = { files: { ...localFiles, ...files }, ownPath, store: 'test' } as unknown as StoreRoot;
  const make = async (): Promise<void> => undefined;
  const source = (path: string): Source => ({ kind: 'directory', path }) as unknown as Source;
  const layout = createDirectoryLayout({ storeRoot, clock: systemClock(), make, source });
  return layout.discardIfEmpty(dataPath(), newMeta(volumeSpec('a'), undefined));
}

const filesWithFailingRmdir = (code: string): Partial<Files> => ({
  rmdir: () => Promise.reject(Object.assign(new Error(code), { code })),
});

describe('discarding a directory only if it is empty', () => {
  test('removes an empty directory', async () => {
    await mkdir(dataPath());
    await discardIfEmpty();
    expect(await readdir(root)).toEqual(['deleting']);
    await discardIfEmpty();
  });

  test.each(['ENOTEMPTY', 'EEXIST', 'EIO'])(
    'refuses a directory that is not empty, also if the server returns %s',
    async (code) => {
      await mkdir(join(dataPath(), 'folder'), { recursive: true });
      await expect(discardIfEmpty(filesWithFailingRmdir(code))).rejects.toMatchObject({
        code: 'conflict',
        reason: 'volume-not-empty',
      });
      expect(await readdir(dataPath())).toEqual(['folder']);
      expect(await readdir(join(root, 'deleting'))).toEqual([]);
    },
  );

  test('reports EIO for an empty directory as a failure, not as content', async () => {
    await mkdir(dataPath());
    await expect(discardIfEmpty(filesWithFailingRmdir('EIO'))).rejects.toMatchObject({ code: 'EIO' });
  });

  test('never moves the directory away if something is written at the last moment', async () => {
    await mkdir(dataPath());
    const rmdir: Files['rmdir'] = async (path) => {
      await writeFile(join(path, 'file'), 'text');
      await localFiles.rmdir(path);
    };
    await expect(discardIfEmpty({ rmdir })).rejects.toMatchObject({ reason: 'volume-not-empty' });
    expect(await readdir(dataPath())).toEqual(['file']);
  });

  test.each([
    ['a file', () => writeFile(dataPath(), '')],
    ['a symbolic link', () => symlink('/tmp', dataPath())],
  ])('does not remove %s that replaced the directory, even if rmdir would remove it', async (_what, plant) => {
    await plant();
    const rmdir: Files['rmdir'] = (path) => rm(path);
    await expect(discardIfEmpty({ rmdir })).rejects.toMatchObject({ reason: 'volume-data-unusable' });
    expect((await readdir(root)).toSorted()).toEqual(['a', 'deleting']);
  });
});
