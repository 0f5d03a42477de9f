import { mkdir, mkdtempDisposable, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { makeFolders } from './make-folders.ts';

test('creates missing folders, concurrently too, and leaves existing ones unchanged', async () => {
  await using top = await mkdtempDisposable(join(tmpdir(), 'stowage-folders-'));
  await mkdir(join(top.path, 'a'), { mode: 0o755 });
  const nestedFolder = join(top.path, 'a', 'b', 'c', 'd');
  await Promise.all(Array.from({ length: 5 }, () => makeFolders(nestedFolder, 0o700)));
  await makeFolders(join(top.path, 'a'), 0o700);
  expect((await stat(nestedFolder)).mode & 0o777).toBe(0o700);
  expect((await stat(join(top.path, 'a'))).mode & 0o777).toBe(0o755);
});

test('throws at a file, a dangling link, or where no folder can be created', async () => {
  await using top = await mkdtempDisposable(join(tmpdir(), 'stowage-folders-'));
  await writeFile(join(top.path, 'file'), '');
  await symlink(join(top.path, 'nowhere', 'at', 'all'), join(top.path, 'link'));
  await expect(makeFolders(join(top.path, 'file'), 0o700)).rejects.toThrow('EEXIST');
  await expect(makeFolders(join(top.path, 'file', 'a', 'b'), 0o700)).rejects.toThrow('ENOTDIR');
  await expect(makeFolders(join(top.path, 'link', 'a'), 0o700)).rejects.toThrow();
  await expect(makeFolders(join(top.path, 'x\0', 'a'), 0o700)).rejects.toThrow();
});

test.skipIf(lacks('linux'))('does not loop for ever where folders can be neither found nor created', async () => {
  await expect(makeFolders('/proc/stowage/state', 0o700)).rejects.toThrow('ENOENT');
});
