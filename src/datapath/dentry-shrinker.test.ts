import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, writeFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
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
  opened: (id) => nodes.opened(id),
  closed: (id) => nodes.closed(id),
});

describe.skipIf(needs('ganesha', 'fuse', 'root'))('a nearly full node table', () => {
  const it = exportedByGanesha();
  const many = 64;

  async function mounted(most: number): Promise<{ readonly mount: FuseMount; readonly table: NodeTable }> {
    const ground = createScratchFolder();
    const fd = createJournal(4);
    const memory = openJournal(fd);
    const limits: NodeLimits = { many, most };
    const table = createNodeTable(memory, limits);
    let mount: FuseMount | undefined;
    const operations = createFileSystem({
      nfs: it.nfs,
      nodes: withoutPlaces(table.of(0, it.directory)),
      clock: systemClock(),
      proofs: { find: () => undefined, write: () => undefined },
      notify: (bytes) => mount?.device.write(bytes),
      notifyApart: async (bytes) => await mount?.device.writeInThread(bytes),
      options: { identity: asCaller },
    });
    mount = await mountFuse(ground, operations, fuseInitOptions({ locks: 'node' }));
    const { [Symbol.asyncDispose]: unmount } = mount;
    onTestFinished(async () => {
      await unmount();
      memory[Symbol.dispose]();
      closeSync(fd);
      ground[Symbol.dispose]();
    });
    return { mount, table };
  }

  const files = (count: number): readonly string[] => Array.from({ length: count }, (_, i) => `file-${i}`);

  test('makes the kernel drop unused dentries, which are found again later', async () => {
    const names = files(500);
    for (const name of names) writeFileSync(it.on(name), name);
    mkdirSync(it.on('sub'));
    const { mount, table } = await mounted(100_000);
    const path = (name: string): string => join(mount.at, name);
    // Another process has its cwd in it and a file open. Not this one: it could not start processes then.
    const script = 'cd "$1"; exec 3<"$2"; echo ready; read line; pwd; cat <&3';
    const inside = run('sh', ['-c', script, 'sh', path('sub'), path('file-0')], { timeout: 60_000 });
    await once(inside.child.stdout ?? expect.fail(), 'data');
    for (let round = 0; round < 3; round++) {
      await run('stat', names.map(path), { timeout: 60_000 });
      await expect.poll(() => table.size, { timeout: 20_000 }).toBeLessThanOrEqual(many + 10);
    }
    await run('ls', ['-l', mount.at], { timeout: 60_000 });
    await expect.poll(() => table.size, { timeout: 20_000 }).toBeLessThanOrEqual(many + 10);
    for (const name of names.slice(0, 100)) expect(await fs.readFile(path(name), 'utf8')).toBe(name);
    inside.child.stdin?.end('go on\n');
    expect((await inside).stdout.split('\n')).toEqual(['ready', path('sub'), 'file-0']);
    expect(mount.faults).toEqual([]);
  });

  test('does not block names from being created and removed', async () => {
    const { mount, table } = await mounted(100_000);
    const work = async (worker: number): Promise<void> => {
      for (let i = 0; i < 150; i++) {
        const path = join(mount.at, `${worker}-${i}`);
        await fs.writeFile(path, String(i));
        if (i % 3 === 0) await fs.rm(path);
        else if (i % 3 === 1) await fs.rename(path, `${path}-moved`);
      }
    };
    await Promise.all([0, 1, 2].map(work));
    expect((await fs.readdir(mount.at)).length).toBe(300);
    await expect.poll(() => table.size, { timeout: 20_000 }).toBeLessThanOrEqual(many + 10);
    expect(mount.faults).toEqual([]);
  });

  test('refuses new nodes while all are in use, until some are closed', async () => {
    const names = files(200);
    for (const name of names) writeFileSync(it.on(name), name);
    const most = 100;
    const { mount, table } = await mounted(most);
    const path = (name: string): string => join(mount.at, name);
    const held: fs.FileHandle[] = [];
    onTestFinished(() => Promise.all(held.map((one) => one.close())).then(() => undefined));
    for (const name of names.slice(0, most)) held.push(await fs.open(path(name)));
    expect(table.size).toBe(most);
    await expect(fs.stat(path('file-150'))).rejects.toMatchObject({ code: 'ENOMEM' });
    await expect(fs.writeFile(path('new'), 'x')).rejects.toMatchObject({ code: 'ENOMEM' });
    await expect(fs.mkdir(path('new'))).rejects.toMatchObject({ code: 'ENOMEM' });
    await expect(fs.stat(it.on('new'))).rejects.toMatchObject({ code: 'ENOENT' });
    // Names can still be listed, and open files used.
    expect(await fs.readdir(mount.at)).toHaveLength(names.length);
    for (const [i, one] of held.entries()) expect(await one.readFile('utf8')).toBe(names[i]);
    for (const one of held.splice(0)) await one.close();
    const soon = (work: () => Promise<unknown>) =>
      expect.poll(() => work().then(() => 'done', String), { timeout: 20_000, interval: 5 }).toBe('done');
    await soon(() => fs.writeFile(path('new'), 'x'));
    for (const name of names) await soon(() => fs.stat(path(name)));
    expect(mount.faults).toEqual([]);
  });
});
