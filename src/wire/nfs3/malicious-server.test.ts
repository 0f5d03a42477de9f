import { describe, expect, test } from 'vitest';
import { startFakeNfs } from '#testing/fake-nfs.ts';
import { usedMemoryMib } from '#testing/memory.ts';
import type { Reply, ServedProcedure } from '../rpc/server.ts';
import type { XdrReader } from '../xdr/reader.ts';
import type { XdrWriter } from '../xdr/writer.ts';
import { listDirectory } from './listing.ts';
import { getattr, lookup, readdirplus, remove, rmdir } from './procedures.ts';
import { emptyDirectory, removeTree } from './remove-tree.ts';
import { type Attributes, fileType, writeAttributes, writePostAttributes, writePostHandle } from './structures.ts';
import { walkTree } from './walk-tree.ts';

type Handle = ServedProcedure['handle'];

const root = Buffer.from('root');
const attributes: Attributes = {
  type: fileType.regular,
  mode: 0o755,
  links: 1,
  uid: 0,
  gid: 0,
  size: 0,
  used: 0,
  major: 0,
  minor: 0,
  fsid: 1n,
  fileId: 1n,
  atime: 0,
  atimeNs: 0,
  mtime: 0,
  mtimeNs: 0,
  ctime: 0,
  ctimeNs: 0,
};
const directory: Attributes = { ...attributes, type: fileType.directory };

const said =
  (write: (writer: XdrWriter) => void): Reply =>
  (writer) => {
    write(writer.u32(0));
    return undefined;
  };
/** To GETATTR: whatever is asked about is a directory. */
const aDirectory: Handle = () => said((writer) => writeAttributes(writer, directory));
const wcc: Reply = said((writer) => writer.u32(0).u32(0));

interface Listed {
  readonly name: string;
  readonly cookie: number;
  readonly handle?: Buffer;
  readonly attributes?: Attributes;
}

/** Answers READDIRPLUS by what comes after a cookie in a directory. */
const listing =
  (after: (cookie: number, handle: string) => readonly Listed[], isEnd: (handle: string) => boolean): Handle =>
  (reader) => {
    const handle = reader.opaque(64).toString();
    const entries = after(Number(reader.u64()), handle);
    return said((writer) => {
      writer.bool(false).u64(0n);
      for (const entry of entries) {
        writer.bool(true).u64(1n).string(entry.name).u64(BigInt(entry.cookie));
        writePostAttributes(writer, entry.attributes);
        writePostHandle(writer, entry.handle);
      }
      writer.bool(false).bool(isEnd(handle));
    });
  };

const page = (from: number, count: number, one: (i: number) => Omit<Listed, 'cookie'>): readonly Listed[] =>
  Array.from({ length: count }, (_, i) => ({ ...one(from + i), cookie: from + i + 1 }));

async function drained(pages: AsyncIterable<readonly unknown[]>): Promise<number> {
  let count = 0;
  for await (const { length } of pages) count += length;
  return count;
}

describe('an endless directory', () => {
  const endless = listing(
    (from) => page(from, 250, (i) => ({ name: `${i}`.padStart(200, 'x') })),
    () => false,
  );

  test('is listed up to a limit, and its names do not fill the memory', async () => {
    const { nfs } = await startFakeNfs({ [readdirplus.number]: endless });
    const before = usedMemoryMib();
    let held = 0;
    let given = 0;
    const list = async (): Promise<void> => {
      for await (const { length } of listDirectory(nfs, root, { maxEntries: 400_000 })) {
        given += length;
        if (given % 100_000 === 0) held = usedMemoryMib() - before;
      }
    };
    await expect(list()).rejects.toThrow('the server lists a directory without coming to its end');
    expect(given).toBeGreaterThan(400_000);
    // All of the names, each with its attributes, would be twice that.
    expect(held).toBeLessThan(70);
  });

  test('stops when the caller aborts', async () => {
    const { nfs } = await startFakeNfs({ [readdirplus.number]: endless });
    const mine = new AbortController();
    setTimeout(() => mine.abort(), 50);
    await expect(drained(listDirectory(nfs, root, { signal: mine.signal }))).rejects.toMatchObject({
      failure: 'canceled',
    });
  });

  test.each([
    [
      'cookies in a circle',
      listing(
        (from) => page(from % 3000, 250, (i) => ({ name: `n${i % 3000}` })),
        () => false,
      ),
    ],
    [
      'one cookie for ever',
      listing(
        () => [{ name: 'a', cookie: 7 }],
        () => false,
      ),
    ],
    [
      'empty pages for ever',
      listing(
        () => [],
        () => false,
      ),
    ],
    [
      'only names that cannot be',
      listing(
        (from) => page(from, 9, () => ({ name: 'a/b' })),
        () => false,
      ),
    ],
  ])('%s', async (_, handle) => {
    const { nfs } = await startFakeNfs({ [readdirplus.number]: handle });
    await expect(drained(listDirectory(nfs, root))).rejects.toThrow('without coming to its end');
  });
});

describe('an endless tree', () => {
  /** Every name is a directory; only the root has any. */
  const wide = listing(
    (from, handle) =>
      handle === 'root'
        ? page(from, 250, (i) => ({ name: `d${i}`, handle: Buffer.from(`d${i}`), attributes: directory }))
        : [],
    (handle) => handle !== 'root',
  );

  test('is walked up to a limit', async () => {
    const { nfs } = await startFakeNfs({ [readdirplus.number]: wide });
    const before = usedMemoryMib();
    await expect(walkTree(nfs, root, () => undefined)).rejects.toThrow('too many directories to walk it');
    expect(usedMemoryMib() - before).toBeLessThan(150);
  });

  test('is removed in parts, until the caller aborts', async () => {
    const mine = new AbortController();
    const before = usedMemoryMib();
    let removed = 0;
    const { nfs } = await startFakeNfs({
      [getattr.number]: aDirectory,
      [readdirplus.number]: wide,
      [rmdir.number]: () => {
        // More than the first part.
        if (++removed === 12_000) mine.abort();
        return wcc;
      },
    });
    let most = 0;
    const look = (done: number): void => {
      if (done % 4_000 === 0) most = Math.max(most, usedMemoryMib() - before);
    };
    await expect(emptyDirectory(nfs, root, { signal: mine.signal, onProgress: look })).rejects.toMatchObject({
      failure: 'canceled',
    });
    // Ten thousand directories, and not the hundreds of thousands that are listed in that time.
    expect(most).toBeLessThan(20);
  });

  test('that contains itself does not keep the client busy for ever', async () => {
    const self = listing(
      (from) => page(from, 1, () => ({ name: 'self', handle: root, attributes: directory })),
      () => true,
    );
    const { nfs } = await startFakeNfs({ [readdirplus.number]: self });
    const mine = new AbortController();
    const before = usedMemoryMib();
    setTimeout(() => mine.abort(), 500);
    await expect(walkTree(nfs, root, () => undefined, { signal: mine.signal })).rejects.toThrow();
    expect(usedMemoryMib() - before).toBeLessThan(20);
  });
});

describe('names that lead elsewhere', () => {
  test.each([
    ['with handles', root],
    ['to be looked up', undefined],
  ])('%s are asked for nowhere, and removed nowhere', async (_, handle) => {
    const strange = ['..', '.', '', '/', 'a/b', '../../etc/passwd', 'x\0y', 'n'.repeat(255), 'good'];
    const asked: string[] = [];
    const noted = (reader: XdrReader): void => {
      reader.opaque(64);
      asked.push(reader.string(10_000));
    };
    const about = handle === undefined ? {} : { handle, attributes };
    const { nfs } = await startFakeNfs({
      [readdirplus.number]: listing(
        () => page(0, strange.length, (i) => ({ name: strange[i] ?? '', ...about })),
        () => true,
      ),
      [getattr.number]: aDirectory,
      [lookup.number]: (reader) => {
        noted(reader);
        const isTree = asked.at(-1) === 'tree';
        return said((writer) => {
          writePostAttributes(writer.opaque(root), isTree ? directory : attributes);
          writePostAttributes(writer, undefined);
        });
      },
      [remove.number]: (reader) => {
        noted(reader);
        return wcc;
      },
      [rmdir.number]: (reader) => {
        noted(reader);
        return wcc;
      },
    });
    await removeTree(nfs, root, 'tree');
    expect([...new Set(asked)].toSorted()).toEqual(['good', 'n'.repeat(255), 'tree']);
  });
});
