import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { startGoNfs } from '#testbed/go-nfs.ts';
import { lacks } from '#testbed/lacks.ts';
import { startRustNfs } from '#testbed/nfs3-server.ts';
import { openExport } from '#testing/nfs-export.ts';
import { mountNfs, type NfsMount } from '#testing/nfs-mount.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';

const run = promisify(execFile);

/** Operations that every server supports. */
async function exercise(mount: NfsMount): Promise<void> {
  const path = (name: string): string => join(mount.at, name);
  const data = randomBytes(3_000_000);
  await fs.mkdir(path('a/b'), { recursive: true });
  await fs.writeFile(path('a/file'), data);
  expect((await fs.readFile(path('a/file'))).equals(data)).toBe(true);
  await fs.appendFile(path('a/file'), 'end');
  await fs.rename(path('a/file'), path('a/b/moved'));
  expect((await fs.stat(path('a/b/moved'))).size).toBe(data.length + 3);
  await fs.truncate(path('a/b/moved'), 1_000);
  expect((await fs.readFile(path('a/b/moved'))).equals(data.subarray(0, 1_000))).toBe(true);
  await expect(fs.stat(path('a/file'))).rejects.toThrow('ENOENT');
  const names = Array.from({ length: 300 }, (_, i) => `file-${i}`);
  for (const name of names) await fs.writeFile(path(`a/${name}`), name);
  expect((await fs.readdir(path('a'))).toSorted()).toEqual(['b', ...names].toSorted());
  for (const name of names.slice(0, 20)) expect(await fs.readFile(path(`a/${name}`), 'utf8')).toBe(name);
  await using openFile = await fs.open(path('a/file-0'), 'r');
  await fs.unlink(path('a/file-0'));
  expect((await openFile.read(Buffer.alloc(6), 0, 6, 0)).buffer.toString()).toBe('file-0');
  await openFile.close();
  const hidden = async () => (await fs.readdir(path('a'))).filter((name) => name.startsWith('.nfs'));
  await expect.poll(hidden).toEqual([]);
  await run('rm', ['-r', path('a')], { timeout: 30_000 });
  expect(await fs.readdir(mount.at)).toEqual([]);
  expect(mount.faults).toEqual([]);
}

describe.skipIf(lacks('fuse', 'root'))('a mount of another NFS server', () => {
  test('works with our own server', async () => {
    using scratch = createScratchFolder();
    const server = await startOwnServer();
    await using mount = await mountNfs(scratch.folder, await server.mount());
    await exercise(mount);
  });

  const mountExported = async (scratch: ScratchFolder, server: Parameters<typeof openExport>[0], path: string) => {
    const opened = await openExport(server, path);
    return { opened, mount: await mountNfs(scratch.folder, opened) };
  };

  test.skipIf(lacks('go-nfs'))('works with go-nfs', async () => {
    using scratch = createScratchFolder();
    const path = join(scratch.folder, 'exported');
    mkdirSync(path);
    await using server = await startGoNfs({ path, signal: scratch.scope.signal });
    const { opened, mount } = await mountExported(scratch, server, '/');
    using _ = opened;
    await using _mount = mount;
    await exercise(mount);
  });

  test.skipIf(lacks('nfs3-server'))('works with nfs3_server', async () => {
    using scratch = createScratchFolder();
    await using server = await startRustNfs(scratch.scope.signal);
    const { opened, mount } = await mountExported(scratch, server, '/');
    using _ = opened;
    await using _mount = mount;
    await exercise(mount);
  });
});
