import { execFileSync, spawnSync } from 'node:child_process';
import { chmod, link, mkdir, mkdtemp, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { asOrdinaryUser } from '#testbed/ordinary-user.ts';
import { scope } from '#testing/contracts/store.ts';
import { scanTree } from './scan.ts';
import { emptyFolder } from './tree.ts';

let folder: string;
let outside: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'stowage-tree-'));
  outside = await mkdtemp(join(tmpdir(), 'stowage-outside-'));
  await writeFile(join(outside, 'precious'), 'precious');
});
afterEach(async () => {
  await rm(folder, { recursive: true, force: true });
  expect(await readFile(join(outside, 'precious'), 'utf8')).toBe('precious');
  await rm(outside, { recursive: true });
});

/** Creates nested directories by renaming, so that no path gets long. */
async function makeDeepTree(top: string, levels: number): Promise<void> {
  await mkdir(top);
  for (let i = 0; i < levels; i++) {
    await mkdir(`${top}.next`);
    await rename(top, join(`${top}.next`, 'd'));
    await rename(`${top}.next`, top);
  }
}

describe('emptying a folder', () => {
  test('removes every type of file, whatever its name', async () => {
    const a = join(folder, 'a');
    await mkdir(join(a, 'x', 'y', 'z'), { recursive: true });
    await mkdir(join(a, 'empty'));
    for (let i = 0; i < 700; i++) await writeFile(join(a, 'x', `${i}`), '');
    await symlink(outside, join(a, 'x', 'y', 'link'));
    await symlink(outside, join(folder, 'link'));
    await writeFile(Buffer.concat([Buffer.from(`${a}/`), Buffer.from([0xff, 0xfe, 0x0a])]), '');
    execFileSync('mkfifo', [join(a, 'fifo')]);
    await writeFile(join(folder, 'image.img'), 'x');
    expect(await emptyFolder(folder, scope)).toEqual([]);
    expect(await readdir(folder)).toEqual([]);
  });

  test('removes trees deeper than the limits of paths and descriptors', async () => {
    await makeDeepTree(join(folder, 'deep'), 3000);
    expect(await emptyFolder(folder, scope)).toEqual([]);
    expect(await readdir(folder)).toEqual([]);
  });

  test('stops when its signal aborts, and continues in the next call', async () => {
    await makeDeepTree(join(folder, 'deep'), 200);
    const controller = new AbortController();
    let calls = 0;
    const signal = new Proxy(controller.signal, {
      get: (target, key) => {
        // After a while, in the middle of the work.
        if (key === 'throwIfAborted' && ++calls === 40) controller.abort();
        const value: unknown = Reflect.get(target, key, target);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
    await expect(emptyFolder(folder, { ...scope, signal })).rejects.toThrow();
    expect((await readdir(folder)).length).toBeGreaterThan(0);
    expect(await emptyFolder(folder, scope)).toEqual([]);
    expect(await readdir(folder)).toEqual([]);
  });

  test('never follows directories that are swapped for symbolic links', async () => {
    const tree = join(folder, 'a');
    for (let i = 0; i < 40; i++) await mkdir(join(tree, `${i}`, 'sub'), { recursive: true });
    let isSwapping = true;
    const swapDirectories = async (): Promise<void> => {
      // A container with an open handle could do this. Most of these calls fail, because the tree has moved.
      for (let i = 0; isSwapping; i = (i + 1) % 40) {
        await rename(join(tree, `${i}`), join(tree, `was-${i}`)).catch(() => undefined);
        await symlink(outside, join(tree, `${i}`)).catch(() => undefined);
      }
    };
    const swapper = swapDirectories();
    for (let i = 0; i < 20 && (await readdir(folder)).length > 0; i++) await emptyFolder(folder, scope);
    isSwapping = false;
    await swapper;
    await emptyFolder(folder, scope);
    expect(await readdir(folder)).toEqual([]);
  });

  test.skipIf(lacks('ordinary-user'))('an ordinary user removes directories whose mode denies access', async () => {
    await chmod(folder, 0o777);
    const code = `
      const { mkdir, writeFile, chmod, readdir } = await import('node:fs/promises');
      const { emptyFolder } = await import(${JSON.stringify(pathToFileURL(join(import.meta.dirname, 'tree.ts')).href)});
      const top = ${JSON.stringify(folder)} + '/mine';
      await mkdir(top + '/t/shut/inner', { recursive: true });
      await writeFile(top + '/t/shut/inner/file', 'x');
      await writeFile(top + '/t/file', 'x');
      for (const path of ['/t/shut/inner', '/t/shut', '/t']) await chmod(top + path, 0);
      const log = { warn: console.log };
      console.log(JSON.stringify([await emptyFolder(top, { signal: new AbortController().signal, log }), await readdir(top)]));`;
    const [file, args] = asOrdinaryUser([process.execPath, '--input-type=module', '-e', code]);
    const { stdout, stderr } = spawnSync(file, [...args], { encoding: 'utf8' });
    expect(stdout.trim(), stderr).toBe('[[],[]]');
  });
});

describe('scanning a tree', () => {
  const du = (path: string): bigint =>
    BigInt(execFileSync('du', ['-s', '-B1', path], { encoding: 'utf8' }).split('\t')[0] ?? '');

  test('counts what du counts: allocated blocks, hard links once, no targets of symbolic links', async () => {
    await mkdir(join(folder, 'a', 'b'), { recursive: true });
    await writeFile(join(folder, 'a', 'file'), Buffer.alloc(100_000, 1));
    await link(join(folder, 'a', 'file'), join(folder, 'a', 'b', 'same'));
    execFileSync('truncate', ['-s', '1G', join(folder, 'a', 'sparse')]);
    await symlink(outside, join(folder, 'a', 'link'));
    await writeFile(Buffer.concat([Buffer.from(`${folder}/a/`), Buffer.from([0xff])]), 'x');
    const scanned = await scanTree(folder, scope.signal);
    expect(scanned).toEqual({ bytes: du(folder), files: 6n, complete: true });
  });

  test('stops at a deadline with an incomplete result', async () => {
    for (let i = 0; i < 50; i++) await mkdir(join(folder, `${i}`));
    using limit = systemClock().deadline(0, scope.signal);
    await new Promise<void>((resolve) => limit.signal.addEventListener('abort', () => resolve(), { once: true }));
    expect(await scanTree(folder, limit.signal)).toMatchObject({ complete: false });
  });

  test('skips what exceeds its memory limits, and reports an incomplete result', async () => {
    for (const name of ['a', 'b', 'c']) await mkdir(join(folder, 'd', name), { recursive: true });
    for (const name of ['x', 'y']) {
      await writeFile(join(folder, name), 'x');
      await link(join(folder, name), join(folder, `${name}-again`));
    }
    const limits = { maxLinks: 2, maxPathBytes: 10_000 };
    expect(await scanTree(folder, scope.signal, limits)).toEqual({ bytes: du(folder), files: 6n, complete: true });
    expect(await scanTree(folder, scope.signal, { ...limits, maxLinks: 1 })).toMatchObject({
      files: 5n,
      complete: false,
    });
    const limitedScan = await scanTree(folder, scope.signal, { ...limits, maxPathBytes: 700 });
    expect(limitedScan).toMatchObject({ files: 6n, complete: false });
  });

  test('throws when it is canceled', async () => {
    await expect(scanTree(folder, AbortSignal.abort())).rejects.toMatchObject({ code: 'canceled' });
  });
});
