import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { getattr, write } from '../procedures.ts';
import { stability } from '../structures.ts';

describe.skipIf(lacks('linux'))('after a restart', () => {
  test('handles remain valid at every depth, also of files that other programs have moved', async () => {
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    const handles = [root];
    for (let depth = 0; depth < 40; depth++) {
      const { handle } = await nfs.mkdir(handles.at(-1) ?? root, `d${depth}`, { mode: 0o755 });
      handles.push(handle);
    }
    const { handle: deep } = await nfs.create(handles.at(-1) ?? root, 'f', { mode: 'guarded', set: {} });
    const { handle: moved } = await nfs.create(handles[3] ?? root, 'm', { mode: 'guarded', set: {} });
    const { handle: renamed } = await nfs.create(handles[3] ?? root, 'r', { mode: 'guarded', set: {} });
    const before = await Promise.all([...handles, deep, moved, renamed].map((handle) => nfs.getattr(handle)));
    await own.restart();
    const pathAtDepth = (depth: number): string =>
      join(own.directory, ...Array.from({ length: depth }, (_, i) => `d${i}`));
    fs.renameSync(join(pathAtDepth(3), 'm'), join(own.directory, 'm'));
    fs.renameSync(join(pathAtDepth(3), 'r'), join(pathAtDepth(3), 'other name'));
    fs.renameSync(pathAtDepth(2), join(pathAtDepth(1), 'other name'));
    const after = await Promise.all([...handles, deep, moved, renamed].map((handle) => nfs.getattr(handle)));
    const ids = (all: typeof after) => all.map(({ fileId, fsid }) => [fileId, fsid]);
    expect(ids(after)).toEqual(ids(before));
    // The handles can be used for changes, too.
    await nfs.mkdir(handles[20] ?? root, 'new', {});
    expect(fs.existsSync(join(own.directory, 'd0', 'other name'))).toBe(true);
    expect(own.errors).toEqual([]);
  });

  test('the handle of a removed file is stale, also if a new file has its inode number', async () => {
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    const { handle } = await nfs.create(root, 'f', { mode: 'guarded', set: {} });
    const { fileId } = await nfs.getattr(handle);
    await own.restart();
    fs.unlinkSync(join(own.directory, 'f'));
    let reused = false;
    for (let i = 0; i < 64 && !reused; i++) {
      fs.writeFileSync(join(own.directory, `n${i}`), '');
      reused = BigInt(fs.statSync(join(own.directory, `n${i}`)).ino) === fileId;
    }
    await expect(nfs.getattr(handle)).rejects.toMatchObject({ statusName: 'STALE' });
    for (const name of fs.readdirSync(own.directory)) await nfs.lookup(root, name);
    await expect(nfs.getattr(handle)).rejects.toMatchObject({ statusName: 'STALE' });
  });

  test('the server returns another write verifier', async () => {
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    const { handle } = await nfs.create(root, 'f', { mode: 'guarded', set: {} });
    const first = await nfs.write(handle, 0, Buffer.from('x'), stability.unstable);
    expect(first.committed).toBe(stability.unstable);
    expect((await nfs.commit(handle, 0, 0)).verifier).toBe(first.verifier);
    await own.restart();
    const second = await nfs.write(handle, 1, Buffer.from('y'), stability.dataSync);
    expect(second).toMatchObject({ committed: stability.dataSync, change: { after: { size: 2 } } });
    expect(second.verifier).not.toBe(first.verifier);
    expect(fs.readFileSync(join(own.directory, 'f'), 'latin1')).toBe('xy');
  });

  test('a listing continues where it was', async () => {
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    for (let i = 0; i < 500; i++) fs.writeFileSync(join(own.directory, `f${i}`), '');
    const names: string[] = [];
    let position = { cookie: 0n, verifier: 0n };
    for (;;) {
      const page = await nfs.readdirplus({ directory: root, ...position, bytes: 8192 });
      names.push(...page.entries.map(({ name }) => name));
      if (page.isEnd) break;
      position = { cookie: page.entries.at(-1)?.cookie ?? 0n, verifier: page.verifier };
      await own.restart();
    }
    expect(names.length).toBe(502);
    expect(new Set(names).size).toBe(502);
  }, 120_000);

  test('the server rejects all handles if the secret has changed', async () => {
    const own = await startOwnServer();
    const { rpc, root } = await own.mount();
    await own.restart({ state: join(own.outside, 'other') });
    await expect(rpc.call(getattr, root)).rejects.toMatchObject({ statusName: 'BADHANDLE' });
  });
});

describe.skipIf(lacks('linux'))('a forged handle', () => {
  test('is refused by every procedure', async () => {
    const own = await startOwnServer();
    const { rpc, root } = await own.mount();
    const { ino } = fs.statSync(own.outside);
    const forged = Buffer.from(root);
    forged.writeBigUInt64BE(BigInt(ino), 4);
    for (const handle of [forged, Buffer.alloc(0), Buffer.alloc(64), Buffer.alloc(8, 7), root.subarray(0, 20)]) {
      await expect(rpc.call(getattr, handle)).rejects.toMatchObject({ statusName: 'BADHANDLE' });
      await expect(rpc.call(write, { handle, offset: 0, data: Buffer.from('x'), stable: 0 })).rejects.toMatchObject({
        statusName: 'BADHANDLE',
      });
    }
  });
});

describe.skipIf(lacks('linux'))('objects that another program plants or swaps', () => {
  test('a directory that was replaced by a link is not followed', async () => {
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    fs.mkdirSync(join(own.directory, 'd'));
    fs.writeFileSync(join(own.directory, 'd', 'f'), 'inside');
    fs.writeFileSync(join(own.outside, 'f'), 'outside');
    const { handle: d } = await nfs.lookup(root, 'd');
    const { handle: f } = await nfs.lookup(d, 'f');
    await own.restart();
    fs.renameSync(join(own.directory, 'd'), join(own.outside, 'd'));
    fs.symlinkSync(own.outside, join(own.directory, 'd'));
    for (const handle of [d, f]) await expect(nfs.getattr(handle)).rejects.toMatchObject({ statusName: 'STALE' });
    await expect(nfs.write(f, 0, Buffer.from('x'), 0)).rejects.toMatchObject({ statusName: 'STALE' });
    await expect(nfs.create(d, 'g', { mode: 'guarded', set: {} })).rejects.toMatchObject({ statusName: 'STALE' });
    expect(fs.readdirSync(own.outside).sort()).toEqual(['d', 'f']);
    expect(fs.readFileSync(join(own.outside, 'f'), 'latin1')).toBe('outside');
  });

  test('links and directories that are swapped all the time never expose or change anything outside the export', async () => {
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    const pathOf = (name: string): string => join(own.directory, name);
    fs.mkdirSync(pathOf('d'));
    fs.writeFileSync(join(pathOf('d'), 'f'), 'inside');
    fs.writeFileSync(join(own.outside, 'f'), 'outside');
    fs.symlinkSync(own.outside, pathOf('link'));
    const swap = (): void => {
      fs.renameSync(pathOf('d'), pathOf('x'));
      fs.renameSync(pathOf('link'), pathOf('d'));
      fs.renameSync(pathOf('d'), pathOf('link'));
      fs.renameSync(pathOf('x'), pathOf('d'));
    };
    const contents = new Set<string>();
    const useDirectory = async (i: number): Promise<void> => {
      const { handle: d } = await nfs.lookup(root, 'd');
      const { handle: f } = await nfs.lookup(d, 'f');
      const into = Buffer.alloc(16);
      const { count } = await nfs.read(f, 0, into);
      contents.add(into.toString('latin1', 0, count));
      await nfs.mkdir(d, `m${i}`, {});
      await nfs.setattr(f, { mode: 0o600 });
    };
    for (let i = 0; i < 200; i++) {
      const work = useDirectory(i).catch((cause: { statusName?: string }) => expect(cause.statusName).toBeDefined());
      if (i % 3 === 0) fs.renameSync(pathOf('d'), pathOf('x'));
      if (i % 3 === 0) fs.renameSync(pathOf('link'), pathOf('d'));
      await work;
      if (i % 3 === 0) fs.renameSync(pathOf('d'), pathOf('link'));
      if (i % 3 === 0) fs.renameSync(pathOf('x'), pathOf('d'));
      swap();
    }
    expect([...contents]).toEqual(['inside']);
    expect(fs.readdirSync(own.outside)).toEqual(['f']);
    expect(fs.statSync(join(own.outside, 'f')).mode & 0o777).not.toBe(0o600);
  });

  test('a FIFO, a socket or a device is listed, and never opened', async () => {
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    const { createServer } = await import('node:net');
    const server = createServer().listen(join(own.directory, 'socket'));
    await new Promise((resolve) => server.on('listening', resolve));
    const { handle, attributes } = await nfs.lookup(root, 'socket');
    expect(attributes?.type).toBe(6);
    await expect(nfs.read(handle, 0, Buffer.alloc(1))).rejects.toMatchObject({ statusName: 'INVAL' });
    await nfs.setattr(handle, { mode: 0o700 });
    expect(fs.statSync(join(own.directory, 'socket')).mode & 0o777).toBe(0o700);
    server.close();
  });
});

describe.skipIf(lacks('mount'))('other file systems below the export', () => {
  test('are not part of the export', async () => {
    const { execFileSync } = await import('node:child_process');
    const own = await startOwnServer();
    const { nfs, root } = await own.mount();
    const mountPoint = join(own.directory, 'mounted');
    fs.mkdirSync(mountPoint);
    execFileSync('mount', ['-t', 'tmpfs', 'stowage-nfs-server', mountPoint]);
    try {
      fs.writeFileSync(join(mountPoint, 'f'), '');
      await expect(nfs.lookup(root, 'mounted')).rejects.toMatchObject({ statusName: 'NOENT' });
      const { entries } = await nfs.readdir({ directory: root, cookie: 0n, verifier: 0n, bytes: 4096 });
      expect(entries.map(({ name }) => name)).toEqual(['.', '..']);
    } finally {
      execFileSync('umount', [mountPoint]);
    }
    expect((await nfs.lookup(root, 'mounted')).attributes?.type).toBe(2);
  });
});
