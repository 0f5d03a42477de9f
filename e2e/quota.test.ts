import { execFile } from 'node:child_process';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { ganeshaFolders, portsOf } from '#testing/ganesha-folders.ts';
import {
  createServerFolders,
  dataPath,
  pollOptions,
  runCli,
  type ServerFolders,
  startTestServer,
  waitUntilServing,
} from './nfs-mount-fixture.ts';
import type { Stowage } from './stowage.ts';

const run = promisify(execFile);
const mib = 1024 * 1024;

/** Writes in chunks of 1 MiB until the first error. Returns the written size and the error. */
async function fill(file: string, maxMib: number): Promise<{ readonly mib: number; readonly output: string }> {
  const args = ['if=/dev/zero', `of=${file}`, 'bs=1M', `count=${maxMib}`, 'conv=fsync'];
  const output = await run('dd', args, { timeout: 60_000 }).then(
    ({ stderr }) => stderr,
    ({ stderr }) => String(stderr),
  );
  const { stdout } = await run('stat', ['--format=%s', file]);
  return { mib: Number(stdout) / mib, output };
}

async function df(mountPoint: string): Promise<{ readonly size: number; readonly used: number }> {
  const { stdout } = await run('df', ['--block-size=1M', '--output=size,used', mountPoint], { timeout: 20_000 });
  const [size = 0, used = 0] = (stdout.trim().split('\n')[1] ?? '').trim().split(/\s+/).map(Number);
  return { size, used };
}

describe.skipIf(lacks('linux', 'root', 'mount', 'fuse', 'ganesha'))('a volume whose size is enforced', () => {
  const ganesha = ganeshaFolders('quota');

  async function startNode(
    uri: string,
  ): Promise<ServerFolders & { readonly server: Stowage; readonly mountPoint: string }> {
    const folders = await createServerFolders();
    const server = await startTestServer(folders);
    const { port, mountport } = portsOf(ganesha.server);
    await runCli(server, 'store', 'add', 'silver', `${uri}?port=${port}&mountport=${mountport}`);
    return { ...folders, server, mountPoint: join(folders.top, 'mnt') };
  }

  test('takes data up to its size, shows its usage, and frees the space of removed files', {
    timeout: 120_000,
  }, async () => {
    const { server, mountPoint: at } = await startNode(ganesha.fresh().uri);
    await runCli(server, 'volume', 'create', 'silver/small', '--size', '64M', '--enforce');
    await runCli(server, 'mount', 'silver/small', at);
    expect((await df(at)).size).toBe(64);
    expect((await fill(join(at, 'a'), 40)).mib).toBe(40);
    const overflow = await fill(join(at, 'b'), 40);
    expect(overflow.output).toMatch(/Disk quota exceeded/);
    expect(overflow.mib).toBeGreaterThanOrEqual(20);
    expect(overflow.mib).toBeLessThanOrEqual(24);
    await expect.poll(async () => (await df(at)).used, pollOptions).toBeGreaterThanOrEqual(60);
    // Overwriting existing data needs no free space.
    await run('dd', ['if=/dev/zero', `of=${join(at, 'a')}`, 'bs=1M', 'count=8', 'conv=notrunc,fsync']);
    // After a kill, the next data path knows the usage.
    process.kill((await waitUntilServing(server)).pid, 'SIGKILL');
    expect((await fill(join(at, 'c'), 8)).output).toMatch(/Disk quota exceeded/);
    await run('rm', [join(at, 'a'), join(at, 'c')]);
    expect((await fill(join(at, 'd'), 30)).mib).toBe(30);
    // A file that is replaced or truncated frees its space, even after an idle time.
    await run('mv', ['--force', join(at, 'd'), join(at, 'b')]);
    expect((await fill(join(at, 'f'), 30)).mib).toBe(30);
    await setTimeout(3_000);
    await run('truncate', ['--size=1M', join(at, 'b')]);
    expect((await fill(join(at, 'g'), 28)).mib).toBe(28);
    await run('rm', [join(at, 'f')]);
    await runCli(server, 'volume', 'expand', 'silver/small', '128M');
    await expect.poll(async () => (await df(at)).size, pollOptions).toBe(128);
    expect((await fill(join(at, 'e'), 40)).mib).toBe(40);
    await runCli(server, 'unmount', at);
    expect(await dataPath(server)).toMatchObject({ mounts: 0 });
  });

  test('can be overwritten in place when it is full, even by a process that continues after a kill', {
    timeout: 120_000,
  }, async () => {
    const { server, mountPoint: at } = await startNode(ganesha.fresh().uri);
    await runCli(server, 'volume', 'create', 'silver/full', '--size', '64M', '--enforce');
    await runCli(server, 'mount', 'silver/full', at);
    await fill(join(at, 'a'), 16);
    expect((await fill(join(at, 'rest'), 64)).output).toMatch(/Disk quota exceeded/);
    const file = await open(join(at, 'a'), 'r+');
    try {
      const data = Buffer.alloc(16 * mib, 1);
      await file.write(data, 0, data.length, 0);
      await file.sync();
      process.kill((await waitUntilServing(server)).pid, 'SIGKILL');
      data.fill(2);
      expect((await file.write(data, 0, data.length, 0)).bytesWritten).toBe(data.length);
      await file.sync();
      expect((await fill(join(at, 'more'), 8)).output).toMatch(/Disk quota exceeded/);
    } finally {
      await file.close();
    }
    await runCli(server, 'unmount', at);
  });

  test('frees the space of a removed file with a large hole', { timeout: 120_000 }, async () => {
    const { server, mountPoint: at } = await startNode(ganesha.fresh().uri);
    await runCli(server, 'volume', 'create', 'silver/holes', '--size', '64M', '--enforce');
    await runCli(server, 'mount', 'silver/holes', at);
    await run('dd', ['if=/dev/zero', `of=${join(at, 'sparse')}`, 'bs=1M', 'seek=8192', 'count=1', 'conv=fsync']);
    await run('rm', [join(at, 'sparse')]);
    const { mib: written, output } = await fill(join(at, 'a'), 96);
    expect(output).toMatch(/Disk quota exceeded/);
    expect(written).toBeGreaterThanOrEqual(60);
    expect(written).toBeLessThanOrEqual(64);
    await runCli(server, 'unmount', at);
  });

  test('exceeds its size by no more than documented when two nodes fill it together', {
    timeout: 120_000,
  }, async () => {
    const { uri } = ganesha.fresh();
    const one = await startNode(uri);
    await runCli(one.server, 'volume', 'create', 'silver/both', '--size', '64M', '--enforce');
    const other = await startNode(uri);
    for (const { server, mountPoint: at } of [one, other]) await runCli(server, 'mount', 'silver/both', at);
    const [first, second] = await Promise.all([
      fill(join(one.mountPoint, 'here'), 64),
      fill(join(other.mountPoint, 'there'), 64),
    ]);
    const sum = first.mib + second.mib;
    // A chunk is 1 MiB here: 1/64 of the size.
    expect(sum).toBeLessThanOrEqual(66);
    expect(sum).toBeGreaterThanOrEqual(56);
    for (const { output } of [first, second]) expect(output).toMatch(/Disk quota exceeded/);
    for (const { server, mountPoint: at } of [one, other]) await runCli(server, 'unmount', at);
  });

  test('gets its quota when users enable it, and keeps it', { timeout: 60_000 }, async () => {
    const { server, mountPoint: at } = await startNode(ganesha.fresh().uri);
    await runCli(server, 'volume', 'create', 'silver/later', '--size', '64M');
    await runCli(server, 'mount', 'silver/later', at);
    await runCli(server, 'volume', 'enforce', 'silver/later');
    // An existing mount keeps working without the quota. Stowage refuses further mounts.
    expect((await server.cli('mount', 'silver/later', `${at}-more`)).stderr).toContain('Unmount it everywhere');
    expect((await fill(join(at, 'file'), 80)).mib).toBe(80);
    await runCli(server, 'unmount', at);
    for (const target of [at, `${at}-more`]) await runCli(server, 'mount', 'silver/later', target);
    expect((await df(`${at}-more`)).size).toBe(64);
    for (const target of [at, `${at}-more`]) await runCli(server, 'unmount', target);
    expect((await server.api('PATCH', '/v1/volumes/silver..later', { enforce: false })).status).toBeGreaterThanOrEqual(
      400,
    );
    expect((await server.api('GET', '/v1/volumes/silver..later')).body['enforced']).toBe(true);
  });
});
