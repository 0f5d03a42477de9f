import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type Mounted, type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import { readdir, readdirplus } from '../procedures.ts';
import { cookieOf, cookieSecret } from './listing.ts';

function fill(own: OwnServer, count: number, prefix = 'f'): void {
  for (let i = 0; i < count; i++) fs.closeSync(fs.openSync(join(own.directory, `${prefix}${i}`), 'w'));
}

async function list(
  { nfs, root }: Mounted,
  bytes: number,
  onPage: (page: number) => void | Promise<void> = () => undefined,
): Promise<string[]> {
  const names: string[] = [];
  let position = { cookie: 0n, verifier: 0n };
  for (let page = 0; ; page++) {
    const readArgs = page % 2 === 0 ? nfs.readdirplus : nfs.readdir;
    const answer = await readArgs({ directory: root, ...position, bytes });
    names.push(...answer.entries.map(({ name }) => name));
    if (answer.isEnd) return names;
    const last = answer.entries.at(-1);
    if (last === undefined) throw new Error('an answer without entries before the end');
    position = { cookie: last.cookie, verifier: answer.verifier };
    await onPage(page);
  }
}

describe.skipIf(lacks('linux'))('listing a directory', () => {
  test.each([2048, 8192, 65_536, 1_000_000])('returns every entry once, in pages of %d bytes', async (bytes) => {
    const own = await startOwnServer();
    fill(own, 700);
    const names = await list(await own.mount(), bytes);
    expect(names.slice(0, 2)).toEqual(['.', '..']);
    expect(names.slice(2).sort()).toEqual(fs.readdirSync(own.directory).sort());
  });

  test.each([false, true])('returns valid attributes and handles; a process of its own: %s', async (ownsProcess) => {
    const before = process.cwd();
    onTestFinished(() => process.chdir(before));
    const own = await startOwnServer({ ownsProcess });
    fill(own, 3);
    fs.symlinkSync('x', join(own.directory, 'link'));
    const { nfs, root } = await own.mount();
    const { entries } = await nfs.readdirplus({ directory: root, cookie: 0n, verifier: 0n, bytes: 8192 });
    expect(entries).toHaveLength(6);
    for (const { handle, attributes, fileId } of entries) {
      expect(await nfs.getattr(handle ?? Buffer.alloc(0))).toEqual(attributes);
      expect(fileId).toBe(attributes?.fileId);
    }
  });

  test('while other clients create and remove files returns every remaining entry once, and none twice', async () => {
    const own = await startOwnServer({ limits: { namesOfOneDirectory: 300, names: 300 } });
    fill(own, 1000, 'stays');
    fill(own, 1000, 'goes');
    const mounted = await own.mount();
    const names = await list(mounted, 8192, async (page) => {
      for (let i = page * 30; i < (page + 1) * 30; i++) {
        fs.rmSync(join(own.directory, `goes${i}`), { force: true });
        fs.writeFileSync(join(own.directory, `new${i}`), '');
      }
      // Another listing starts from the beginning, and the server forgets the names that it remembered.
      if (page % 4 === 0) await mounted.nfs.readdir({ directory: mounted.root, cookie: 0n, verifier: 0n, bytes: 8192 });
    });
    expect(new Set(names).size).toBe(names.length);
    expect(names.filter((name) => name.startsWith('stays'))).toHaveLength(1000);
  });

  test('ends even if all remembered entries were removed', async () => {
    const own = await startOwnServer({ limits: { namesOfOneDirectory: 100, names: 100 } });
    fill(own, 1000);
    const names = await list(await own.mount(), 4096, (page) => {
      if (page > 0) return;
      for (const name of fs.readdirSync(own.directory)) fs.unlinkSync(join(own.directory, name));
    });
    expect(names.length).toBeLessThan(200);
  });

  test('with 100,000 names holds only a few of them in memory', async () => {
    const own = await startOwnServer({ limits: { namesOfOneDirectory: 20_000, names: 20_000, nodes: 5_000 } });
    fill(own, 100_000);
    const mounted = await own.mount();
    const names = await list(mounted, 128 * 1024);
    expect(names).toHaveLength(100_002);
    expect(new Set(names).size).toBe(100_002);
  });

  test('is refused with too small a size, another cookie verifier, an invalid cookie, or a handle of a file', async () => {
    const own = await startOwnServer();
    fill(own, 3);
    const { rpc, root, nfs } = await own.mount();
    const readArgs = { directory: root, cookie: 0n, verifier: 0n, bytes: 4096 };
    for (const procedure of [readdir, readdirplus]) {
      await expect(rpc.call(procedure, { ...readArgs, bytes: 60 })).rejects.toMatchObject({ statusName: 'TOOSMALL' });
      await expect(rpc.call(procedure, { ...readArgs, cookie: 5n, verifier: 1n })).rejects.toMatchObject({
        statusName: 'BAD_COOKIE',
      });
      await expect(rpc.call(procedure, { ...readArgs, cookie: 2n ** 60n })).rejects.toMatchObject({
        statusName: 'BAD_COOKIE',
      });
      const { handle } = await nfs.lookup(root, 'f0');
      await expect(rpc.call(procedure, { ...readArgs, directory: handle })).rejects.toMatchObject({
        statusName: 'NOTDIR',
      });
    }
    // A reply never has more bytes than requested.
    const { entries } = await rpc.call(readdir, { ...readArgs, bytes: 200 });
    expect(entries.length).toBeLessThan(5);
  });
});

test('the cookies of names differ, and depend on the secret', () => {
  const names = Array.from({ length: 50_000 }, (_, i) => `name-${i}`);
  const firstSecret = cookieSecret(Buffer.from('0123456789abcdef', 'hex'));
  const secondSecret = cookieSecret(Buffer.from('fedcba9876543210', 'hex'));
  const cookies = new Set(names.map((name) => cookieOf(name, firstSecret)));
  expect(cookies.size).toBe(names.length);
  expect(names.filter((name) => cookieOf(name, firstSecret) === cookieOf(name, secondSecret))).toEqual([]);
  for (const cookie of cookies) expect(Number.isSafeInteger(cookie) && cookie >= 3).toBe(true);
});
