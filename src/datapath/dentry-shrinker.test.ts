import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, writeFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { type FuseMount, mountFuse } from '#testing/fuse-mount.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { createFileSystem } from './file-system.ts';
import { fuseInitOptions } from './fuse-init-options.ts';
import { createJournal, openJournal } from './journal/memory.ts';
import type { NodeLimits } from './journal/node-pressure.ts';
import { createNodeTable, type NodeTable } from './journal/nodes.ts';
import type { Nodes } from './ports.ts';

const run = promisify(execFile);

/** For a mount without a journal of requests: none is resent. */
const withoutPlaces = (nodes: Nodes): Nodes => ({
  ...nodes,
  addLookup: (handle) => nodes.addLookup(handle),
  addListed: (handle) => nodes.addLookup(handle),
  removeLookup: (id) => nodes.forget(id, 1),
  addOpen: (id) => nodes.addOpen(id),
  removeOpen: (id) => nodes.removeOpen(id),
});

describe.skipIf(lacks('ganesha', 'fuse', 'root'))('a nearly full node table', () => {
  const exported = exportedByGanesha();
  const shrinkFrom = 64;

  async function mountWithLimit(maxNodes: number): Promise<{ readonly mount: FuseMount; readonly table: NodeTable }> {
    const scratch = createScratchFolder();
    const fd = createJournal(4);
    const memory = openJournal(fd);
    const limits: NodeLimits = { shrinkFrom, maxNodes };
    const table = createNodeTable(memory, limits);
    let mount: FuseMount | undefined;
    const operations = createFileSystem({
      nfs: exported.nfs,
      nodes: withoutPlaces(table.openMount(0, exported.directory)),
      clock: systemClock(),
      proofs: { find: () => undefined, write: () => undefined },
      notify: (bytes) => mount?.device.write(bytes),
      notifyFromThread: async (bytes) => await mount?.device.writeInThread(bytes),
      options: { identity: asCaller },
    });
    mount = await mountFuse(scratch, operations, fuseInitOptions({ locks: 'node' }));
    const { [Symbol.asyncDispose]: unmount } = mount;
    onTestFinished(async () => {
      await unmount();
      memory[Symbol.dispose]();
      closeSync(fd);
      scratch[Symbol.dispose]();
    });
    return { mount, table };
  }

  const fileNames = (count: number): readonly string[] => Array.from({ length: count }, (_, i) => `file-${i}`);

  test('makes the kernel drop unused dentries, which are found again later', async () => {
    const names = fileNames(500);
    for (const name of names) writeFileSync(exported.on(name), name);
    mkdirSync(exported.on('sub'));
    const { mount, table } = await mountWithLimit(100_000);
    const path = (name: string): string => join(mount.at, name);
    // Another process has its cwd in it and a file open. Not this one: it could not start processes then.
    const script = 'cd "$1"; exec 3<"$2"; echo ready; read line; pwd; cat <&3';
    const shellInside = run('sh', ['-c', script, 'sh', path('sub'), path('file-0')], { timeout: 60_000 });
    await once(shellInside.child.stdout ?? expect.fail(), 'data');
    for (let round = 0; round < 3; round++) {
      await run('stat', names.map(path), { timeout: 60_000 });
      await expect.poll(() => table.size, { timeout: 20_000 }).toBeLessThanOrEqual(shrinkFrom + 10);
    }
    await run('ls', ['-l', mount.at], { timeout: 60_000 });
    await expect.poll(() => table.size, { timeout: 20_000 }).toBeLessThanOrEqual(shrinkFrom + 10);
    for (const name of names.slice(0, 100)) expect(await fs.readFile(path(name), 'utf8')).toBe(name);
    shellInside.child.stdin?.end('go on\n');
    expect((await shellInside).stdout.split('\n')).toEqual(['ready', path('sub'), 'file-0']);
    expect(mount.faults).toEqual([]);
  });

  test('does not block names from being created and removed', async () => {
    const { mount, table } = await mountWithLimit(100_000);
    const changeNames = async (worker: number): Promise<void> => {
      for (let i = 0; i < 150; i++) {
        const path = join(mount.at, `${worker}-${i}`);
        await fs.writeFile(path, String(i));
        if (i % 3 === 0) await fs.rm(path);
        else if (i % 3 === 1) await fs.rename(path, `${path}-moved`);
      }
    };
    await Promise.all([0, 1, 2].map(changeNames));
    expect((await fs.readdir(mount.at)).length).toBe(300);
    await expect.poll(() => table.size, { timeout: 20_000 }).toBeLessThanOrEqual(shrinkFrom + 10);
    expect(mount.faults).toEqual([]);
  });

  test('refuses new nodes while all are in use, until some are closed', async () => {
    const names = fileNames(200);
    for (const name of names) writeFileSync(exported.on(name), name);
    const maxNodes = 100;
    const { mount, table } = await mountWithLimit(maxNodes);
    const path = (name: string): string => join(mount.at, name);
    const openFiles: fs.FileHandle[] = [];
    onTestFinished(() => Promise.all(openFiles.map((one) => one.close())).then(() => undefined));
    for (const name of names.slice(0, maxNodes)) openFiles.push(await fs.open(path(name)));
    expect(table.size).toBe(maxNodes);
    await expect(fs.stat(path('file-150'))).rejects.toMatchObject({ code: 'ENOMEM' });
    await expect(fs.writeFile(path('new'), 'x')).rejects.toMatchObject({ code: 'ENOMEM' });
    await expect(fs.mkdir(path('new'))).rejects.toMatchObject({ code: 'ENOMEM' });
    await expect(fs.stat(exported.on('new'))).rejects.toMatchObject({ code: 'ENOENT' });
    // Names can still be listed, and open files used.
    expect(await fs.readdir(mount.at)).toHaveLength(names.length);
    for (const [i, one] of openFiles.entries()) expect(await one.readFile('utf8')).toBe(names[i]);
    for (const one of openFiles.splice(0)) await one.close();
    const expectToSucceed = (work: () => Promise<unknown>) =>
      expect.poll(() => work().then(() => 'done', String), { timeout: 20_000, interval: 5 }).toBe('done');
    await expectToSucceed(() => fs.writeFile(path('new'), 'x'));
    for (const name of names) await expectToSucceed(() => fs.stat(path(name)));
    expect(mount.faults).toEqual([]);
  });
});
