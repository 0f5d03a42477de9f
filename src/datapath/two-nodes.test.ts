import * as fs from 'node:fs/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { type KeeperMount, type KeeperMounts, sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { run } from '#testing/workloads.ts';

/** Names are cached for a second. */
const pollOptions = { timeout: 10_000, interval: 50 };

/** Each node has its own keeper, data path and journal, like two machines. */
describe.skipIf(lacks('root', 'fuse', 'ganesha'))('two nodes that share a volume', { timeout: 60_000 }, () => {
  const exported = exportedByGanesha();
  let nodes: readonly [KeeperMounts, KeeperMounts];
  let mounts: readonly [KeeperMount, KeeperMount];
  beforeAll(async () => {
    nodes = [await startKeeperMounts(), await startKeeperMounts()];
  });
  afterAll(async () => {
    for (const node of nodes ?? []) await node[Symbol.asyncDispose]();
  });
  beforeEach(async () => {
    const source = await sourceOf(exported.server, exported.folder);
    mounts = [await nodes[0].mount(source), await nodes[1].mount(source)];
    return async () => {
      for (const { at } of mounts) await run('umount', [at]);
    };
  });
  const a = (name: string): string => mounts[0].on(name);
  const b = (name: string): string => mounts[1].on(name);

  let kills = 0;
  /** Runs `work` on both nodes alternately, and kills the data path of one of them once. */
  async function alternate(
    rounds: number,
    work: (i: number, writerMount: KeeperMount, readerMount: KeeperMount) => Promise<void>,
  ) {
    for (let i = 0; i < rounds; i++) {
      const [writerMount, readerMount] = i % 2 === 0 ? mounts : ([mounts[1], mounts[0]] as const);
      if (i === 5) await nodes[kills++ % 2]?.killDataPath();
      await work(i, writerMount, readerMount);
    }
  }

  test('opening a file shows what the other node wrote and closed', async () => {
    await alternate(16, async (i, writerMount, readerMount) => {
      const text = `${i} `.repeat(1 + ((i * 997) % 5_000));
      await fs.writeFile(writerMount.on('file'), text);
      await using file = await fs.open(readerMount.on('file'));
      expect((await file.stat()).size).toBe(text.length);
      expect((await file.readFile('utf8')) === text).toBe(true);
    });
  });

  test('a change in place is visible on the other node, and the rest of the file is unchanged', async () => {
    const data = Buffer.alloc(1_000_000, '.');
    await fs.writeFile(a('file'), data);
    await alternate(16, async (i, writerMount, readerMount) => {
      await using file = await fs.open(writerMount.on('file'), 'r+');
      const piece = Buffer.alloc(5_000, `${i % 10}`);
      await file.write(piece, 0, piece.length, 45_001 * i);
      data.set(piece, 45_001 * i);
      await file.close();
      expect((await fs.readFile(readerMount.on('file'))).equals(data)).toBe(true);
    });
  });

  test('lines appended alternately are all present and in order', async () => {
    const lines = Array.from({ length: 24 }, (_, i) => `line ${i} ${'.'.repeat(i * 100)}\n`);
    await alternate(lines.length, async (i, writerMount) => await fs.appendFile(writerMount.on('log'), lines[i] ?? ''));
    for (const path of [a('log'), b('log')]) expect((await fs.readFile(path, 'utf8')) === lines.join('')).toBe(true);
  });

  test('a file truncated and extended on one node has the same content on the other', async () => {
    let data = Buffer.from('x'.repeat(300_000));
    await fs.writeFile(a('file'), data);
    await alternate(16, async (i, writerMount, readerMount) => {
      const size = (i * 104_729) % 400_000;
      await fs.truncate(writerMount.on('file'), size);
      data = Buffer.concat([data.subarray(0, size), Buffer.alloc(Math.max(0, size - data.length))]);
      expect((await fs.readFile(readerMount.on('file'))).equals(data)).toBe(true);
      await fs.appendFile(readerMount.on('file'), 'more');
      data = Buffer.concat([data, Buffer.from('more')]);
      expect((await fs.readFile(writerMount.on('file'))).equals(data)).toBe(true);
    });
  });

  /** Node has no constant for it. */
  const codeOf = ({ errno, code }: { readonly errno: number; readonly code: string }): string =>
    errno === -116 ? 'ESTALE' : code;

  /** Reads through a file that is already open. */
  const readAll = async (file: fs.FileHandle, length: number): Promise<string> => {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, 0);
    return buffer.subarray(0, bytesRead).toString();
  };

  test('the reader of a file replaced by the other node reads the old file or gets ESTALE', async () => {
    const [old, newContent] = ['o'.repeat(200_000), 'n'.repeat(100_000)];
    await fs.writeFile(a('file'), old);
    await using cached = await fs.open(b('file'));
    expect((await readAll(cached, 300_000)) === old).toBe(true);
    await using reader = await fs.open(b('file'));
    await fs.writeFile(a('new'), newContent);
    await fs.rename(a('new'), a('file'));
    for (const file of [reader, cached]) {
      const found = await readAll(file, 300_000).catch(codeOf);
      expect(found === old || found === 'ESTALE').toBe(true);
    }
    await expect.poll(async () => (await fs.readFile(b('file'), 'utf8')) === newContent, pollOptions).toBe(true);
    // No process on the replacing node had it open, so it has no hidden name.
    expect(await fs.readdir(exported.folder)).toEqual(['file']);
  });

  test('the writer of a file replaced by the other node does not touch the new file', async () => {
    await fs.writeFile(a('file'), 'old');
    const writer = await fs.open(b('file'), 'r+');
    await writer.write('begun');
    await writer.sync();
    await fs.writeFile(a('new'), 'the new one');
    await fs.rename(a('new'), a('file'));
    const writeMore = async (): Promise<string> => {
      await writer.write('and ended', 100);
      await writer.sync();
      return 'done';
    };
    expect(['done', 'ESTALE']).toContain(await writeMore().catch(codeOf));
    await writer.close().catch(() => undefined);
    for (const path of [a('file'), b('file'), exported.on('file')])
      await expect.poll(() => fs.readFile(path, 'utf8'), pollOptions).toBe('the new one');
  });

  test('the reader of a file replaced by its writer continues until the writer closes the file', async () => {
    await fs.writeFile(a('file'), 'old');
    const writer = await fs.open(a('file'), 'r+');
    await using reader = await fs.open(b('file'));
    await fs.writeFile(a('new'), 'the new one');
    await fs.rename(a('new'), a('file'));
    await writer.write('OLD', 0);
    await writer.sync();
    expect(await readAll(reader, 100)).toBe('OLD');
    await expect.poll(() => fs.readFile(b('file'), 'utf8'), pollOptions).toBe('the new one');
    await writer.close();
    // The hidden name of the replaced file is removed.
    await expect.poll(() => fs.readdir(exported.folder), pollOptions).toEqual(['file']);
  });
});
