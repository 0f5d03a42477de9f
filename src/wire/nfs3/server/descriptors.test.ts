import { closeSync, existsSync, fstatSync, openSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { createDescriptors } from './descriptors.ts';

const isOpen = (fd: number): boolean => {
  try {
    fstatSync(fd);
    return true;
  } catch {
    return false;
  }
};

function createTestDescriptors(limit: number) {
  const descriptors = createDescriptors(limit);
  const closed: number[] = [];
  const keep = () => {
    const fd = openSync('/dev/null', 'r');
    return descriptors.add(fd, () => closed.push(fd));
  };
  return { descriptors, closed, keep };
}

describe.skipIf(lacks('linux'))('kept descriptors', () => {
  test('beyond the limit are closed, the least recently used first', () => {
    const { descriptors, closed, keep } = createTestDescriptors(3);
    const [a, b, c] = [keep(), keep(), keep()];
    descriptors.startTurn();
    descriptors.markUsed(a);
    descriptors.startTurn();
    const d = keep();
    expect(closed).toEqual([b.fd]);
    expect([a, c, d].map(({ fd }) => isOpen(fd))).toEqual([true, true, true]);
    descriptors.closeAll();
    expect(descriptors.size).toBe(0);
  });

  test('are not closed in the turn of the event loop that uses them, even beyond the limit', () => {
    const { descriptors, closed, keep } = createTestDescriptors(1);
    const all = [keep(), keep(), keep()];
    expect(closed).toEqual([]);
    expect(all.every(({ fd }) => isOpen(fd))).toBe(true);
    descriptors.startTurn();
    keep();
    expect(closed).toHaveLength(3);
    descriptors.closeAll();
  });

  test('are not closed while a call waits for them', () => {
    const { descriptors, closed, keep } = createTestDescriptors(1);
    const descriptorInUse = keep();
    descriptorInUse.users++;
    descriptors.startTurn();
    descriptors.closeAll();
    expect(isOpen(descriptorInUse.fd)).toBe(true);
    descriptors.drop(descriptorInUse);
    expect(closed).toEqual([descriptorInUse.fd]);
    expect(isOpen(descriptorInUse.fd)).toBe(true);
    descriptors.release(descriptorInUse);
    expect(isOpen(descriptorInUse.fd)).toBe(false);
    closeSync(openSync('/dev/null', 'r'));
  });

  test('a server with a limit of one descriptor passes all operations and keeps only one', async () => {
    const own = await startOwnServer({ limits: { descriptors: 1 } });
    const { nfs, root } = await own.mount();
    let [from, to] = [root, root];
    for (const name of ['a', 'b', 'c']) from = (await nfs.mkdir(from, name, {})).handle;
    for (const name of ['x', 'y', 'z']) to = (await nfs.mkdir(to, name, {})).handle;
    const before = readdirSync('/proc/self/fd').length;
    await Promise.all(
      Array.from({ length: 100 }, async (_, i) => {
        const { handle } = await nfs.create(from, `f${i}`, { mode: 'guarded', set: {} });
        await nfs.write(handle, 0, Buffer.from(`content ${i}`), i % 3);
        await nfs.rename({ directory: from, name: `f${i}` }, { directory: to, name: `g${i}` });
        const into = Buffer.alloc(20);
        const { count } = await nfs.read(handle, 0, into);
        expect(into.toString('latin1', 0, count)).toBe(`content ${i}`);
        await nfs.link(handle, { directory: root, name: `h${i}` });
      }),
    );
    expect(readdirSync(join(own.directory, 'a/b/c'))).toEqual([]);
    expect(readdirSync(join(own.directory, 'x/y/z'))).toHaveLength(100);
    expect(existsSync(join(own.directory, 'h99'))).toBe(true);
    await nfs.getattr(root);
    await nfs.readdir({ directory: from, cookie: 0n, verifier: 0n, bytes: 4096 });
    expect(readdirSync('/proc/self/fd').length).toBeLessThan(before + 10);
  });
});
