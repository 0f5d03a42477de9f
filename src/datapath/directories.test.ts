import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { ReaddirArgs } from '#wire/nfs3/procedures.ts';
import { NfsError, type NfsStatusName, nfsStatus } from '#wire/nfs3/status.ts';
import type { EntryPlus } from '#wire/nfs3/structures.ts';
import { createFileSystem } from './file-system.ts';

const root = 1;
const request: Request = {
  uid: 0,
  gid: 0,
  pid: 1,
  slot: 0,
  resent: false,
  signal: new AbortController().signal,
};
const attributes = { type: 1, mode: 0, size: 0, used: 0, fileId: 1n } as never;
const readdirError = (status: NfsStatusName) => new NfsError('READDIRPLUS', nfsStatus[status], false);

const entry = (name: string, cookie: number): EntryPlus => ({
  fileId: BigInt(cookie),
  name,
  bytes: undefined,
  cookie: BigInt(cookie),
  attributes: undefined,
  handle: Uint8Array.of(cookie),
});

function createDirectoryReader(nfs: Partial<NfsClient>) {
  const operations = createFileSystem({
    nfs: nfs as NfsClient,
    nodes: createMemoryNodes(Uint8Array.of(0)),
    proofs: createMemoryProofs(),
    clock: systemClock(),
    notify: () => undefined,
    options: { identity: asCaller, softMs: 1_000 },
  }) as Operations;

  /** Continues reading at a position, `most` entries at once. */
  async function read(
    fh: number,
    offset: bigint,
    maxEntries: number,
    node = root,
  ): Promise<{ names: string[]; offset: bigint }> {
    const names: string[] = [];
    let last = offset;
    const add = ({ name, offset: next }: { name: Uint8Array; offset: bigint }): boolean => {
      if (names.length >= maxEntries) return false;
      names.push(Buffer.from(name).toString());
      last = next;
      return true;
    };
    await operations.readdir(node, { fh, offset, plus: false }, { add }, request);
    return { names, offset: last };
  }

  async function list(maxEntries: number): Promise<string[]> {
    const { fh } = await operations.opendir(root, 0, request);
    const all: string[] = [];
    for (let offset = 0n; ; ) {
      const page = await read(fh, offset, maxEntries);
      if (page.names.length === 0) return all;
      all.push(...page.names);
      offset = page.offset;
    }
  }

  return { operations, read, list };
}

/** Two entries per page. */
const twoEntryPage = (names: readonly string[], { cookie, verifier }: ReaddirArgs, generation = 1) => {
  const from = cookie === 0n ? 0 : Number(cookie) - generation * 100;
  const entries = names.slice(from, from + 2).map((name, i) => entry(name, generation * 100 + from + i + 1));
  return { entries, verifier, isEnd: from + 2 >= names.length };
};

describe('reading a directory', () => {
  const names = ['.', '..', 'a', 'b', 'c', 'd', 'e'];

  test.each([1, 2, 3, 100])('returns each of its names once when read %i at a time', async (maxEntries) => {
    const { list } = createDirectoryReader({ readdirplus: async (args) => twoEntryPage(names, args) });
    expect(await list(maxEntries)).toEqual(names);
  });

  test('supports seeking back and rewinding', async () => {
    const { operations, read } = createDirectoryReader({ readdirplus: async (args) => twoEntryPage(names, args) });
    const { fh } = await operations.opendir(root, 0, request);
    const first = await read(fh, 0n, 2);
    await read(fh, first.offset, 2);
    expect((await read(fh, first.offset, 2)).names).toEqual(['a', 'b']);
    expect((await read(fh, 0n, 2)).names).toEqual(['.', '..']);
    // This data path knows nothing about a directory that its predecessor opened.
    expect((await read(4711, first.offset, 1)).names).toEqual(['a']);
  });

  test('separates two directories that were opened with the same number', async () => {
    const { operations, read } = createDirectoryReader({
      readdirplus: async (args) => twoEntryPage(args.directory.length > 1 ? ['x', 'y', 'z'] : names, args),
      lookup: async () => ({ handle: Uint8Array.of(7, 7), attributes, directory: undefined }),
    });
    const { node } = await operations.lookup(root, Buffer.from('other'), request);
    const fh = 4711;
    const { offset } = await read(fh, 0n, 2);
    expect(offset).toBe(102n);
    expect((await read(fh, offset, 2, node)).names).toEqual(['z']);
    expect((await read(fh, offset, 2)).names).toEqual(['a', 'b']);
  });

  test('restarts from the beginning if the server rejects a cookie, and returns no name twice', async () => {
    let generation = 1;
    let calls = 0;
    const { list } = createDirectoryReader({
      readdirplus: async (args) => {
        if (++calls === 3) generation = 2;
        if (args.cookie !== 0n && Number(args.cookie) < generation * 100) throw readdirError('BAD_COOKIE');
        return twoEntryPage(names, args, generation);
      },
    });
    expect(await list(1)).toEqual(names);
    expect(calls).toBeGreaterThan(4);
  });

  test('sends the verifier that belongs to each position', async () => {
    const sentVerifiers: bigint[] = [];
    const { list } = createDirectoryReader({
      readdirplus: async (args) => {
        sentVerifiers.push(args.verifier);
        return { ...twoEntryPage(names, args), verifier: 77n };
      },
    });
    await list(100);
    expect(sentVerifiers).toEqual([0n, 77n, 77n, 77n]);
  });

  test('skips names that are empty or contain a slash', async () => {
    const names = ['ok', 'a/b', '', '../up', 'fine'];
    const { list } = createDirectoryReader({ readdirplus: async (args) => twoEntryPage(names, args) });
    expect(await list(100)).toEqual(['ok', 'fine']);
  });

  test('works with servers that lack READDIRPLUS or support other sizes only', async () => {
    const withoutReaddirplus = createDirectoryReader({
      readdirplus: () => Promise.reject(readdirError('NOTSUPP')),
      readdir: async (args) => twoEntryPage(names, args),
    });
    expect(await withoutReaddirplus.list(100)).toEqual(names);
    const sizes: number[] = [];
    const withMinSize = createDirectoryReader({
      readdirplus: async (args) => {
        sizes.push(args.bytes);
        if (args.bytes < 200_000) throw readdirError('TOOSMALL');
        return twoEntryPage(names, args);
      },
    });
    expect(await withMinSize.list(100)).toEqual(names);
    expect(sizes.slice(0, 4)).toEqual([65_536, 131_072, 262_144, 262_144]);
  });

  test.each(['NOENT', 'STALE'] as const)(
    'succeeds when a name is removed meanwhile and the server answers %s',
    async (status) => {
      let refused = 0;
      const { list } = createDirectoryReader({
        readdirplus: async (args) => {
          if (args.cookie !== 0n && refused++ < 2) throw readdirError(status);
          return twoEntryPage(names, args);
        },
      });
      expect(await list(100)).toEqual(names);
      const withoutDirectory = createDirectoryReader({ readdirplus: () => Promise.reject(readdirError(status)) });
      await expect(withoutDirectory.list(100)).rejects.toThrow(`E${status}`);
    },
  );

  test("stops if the server's listing never ends", async () => {
    const { list } = createDirectoryReader({
      readdirplus: async ({ verifier }) => ({ entries: [entry('/', 5)], verifier, isEnd: false }),
    });
    await expect(list(100)).rejects.toThrow('EIO');
  });

  test('does not count entries that did not fit into the reply', async () => {
    const nodes = createMemoryNodes(Uint8Array.of(0));
    const operations = createFileSystem({
      nodes,
      proofs: createMemoryProofs(),
      clock: systemClock(),
      notify: () => undefined,
      options: { identity: asCaller },
      nfs: {
        readdirplus: async (args: ReaddirArgs) => ({
          ...twoEntryPage(names, args),
          entries: twoEntryPage(names, args).entries.map((one) => ({ ...one, attributes })),
        }),
      } as never,
    }) as Operations;
    let room = 3;
    for (const offset of [0n, 102n])
      await operations.readdir(root, { fh: 1, offset, plus: true }, { add: () => room-- > 0 }, request);
    expect(nodes.size).toBe(1);
  });
});
