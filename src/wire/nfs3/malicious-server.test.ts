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

const successReply =
  (write: (writer: XdrWriter) => void): Reply =>
  (writer) => {
    write(writer.u32(0));
    return undefined;
  };
/** Answers GETATTR: every object is a directory. */
const getattrDirectory: Handle = () => successReply((writer) => writeAttributes(writer, directory));
const wcc: Reply = successReply((writer) => writer.u32(0).u32(0));

interface ListedEntry {
  readonly name: string;
  readonly cookie: number;
  readonly handle?: Buffer;
  readonly attributes?: Attributes;
}

/** Answers READDIRPLUS with the entries that `after` returns for a cookie and a directory. */
const readdirplusHandler =
  (after: (cookie: number, handle: string) => readonly ListedEntry[], isEnd: (handle: string) => boolean): Handle =>
  (reader) => {
    const handle = reader.opaque(64).toString();
    const entries = after(Number(reader.u64()), handle);
    return successReply((writer) => {
      writer.bool(false).u64(0n);
      for (const entry of entries) {
        writer.bool(true).u64(1n).string(entry.name).u64(BigInt(entry.cookie));
        writePostAttributes(writer, entry.attributes);
        writePostHandle(writer, entry.handle);
      }
      writer.bool(false).bool(isEnd(handle));
    });
  };

const page = (
  from: number,
  count: number,
  entryOf: (i: number) => Omit<ListedEntry, 'cookie'>,
): readonly ListedEntry[] => Array.from({ length: count }, (_, i) => ({ ...entryOf(from + i), cookie: from + i + 1 }));

async function countEntries(pages: AsyncIterable<readonly unknown[]>): Promise<number> {
  let count = 0;
  for await (const { length } of pages) count += length;
  return count;
}

describe('an endless directory', () => {
  const endless = readdirplusHandler(
    (from) => page(from, 250, (i) => ({ name: `${i}`.padStart(200, 'x') })),
    () => false,
  );

  test('is listed up to a limit, and its names do not fill the memory', async () => {
    const { nfs } = await startFakeNfs({ [readdirplus.number]: endless });
    const before = usedMemoryMib();
    let usedMib = 0;
    let listedCount = 0;
    const list = async (): Promise<void> => {
      for await (const { length } of listDirectory(nfs, root, { maxEntries: 400_000 })) {
        listedCount += length;
        if (listedCount % 100_000 === 0) usedMib = usedMemoryMib() - before;
      }
    };
    await expect(list()).rejects.toThrow('the server lists a directory without coming to its end');
    expect(listedCount).toBeGreaterThan(400_000);
    // All names with their attributes would take twice as much.
    expect(usedMib).toBeLessThan(70);
  });

  test('stops when the caller aborts', async () => {
    const { nfs } = await startFakeNfs({ [readdirplus.number]: endless });
    const caller = new AbortController();
    setTimeout(() => caller.abort(), 50);
    await expect(countEntries(listDirectory(nfs, root, { signal: caller.signal }))).rejects.toMatchObject({
      failure: 'canceled',
    });
  });

  test.each([
    [
      'cookies in a circle',
      readdirplusHandler(
        (from) => page(from % 3000, 250, (i) => ({ name: `n${i % 3000}` })),
        () => false,
      ),
    ],
    [
      'the same cookie for ever',
      readdirplusHandler(
        () => [{ name: 'a', cookie: 7 }],
        () => false,
      ),
    ],
    [
      'empty pages for ever',
      readdirplusHandler(
        () => [],
        () => false,
      ),
    ],
    [
      'only invalid names',
      readdirplusHandler(
        (from) => page(from, 9, () => ({ name: 'a/b' })),
        () => false,
      ),
    ],
  ])('with %s causes an error', async (_, handle) => {
    const { nfs } = await startFakeNfs({ [readdirplus.number]: handle });
    await expect(countEntries(listDirectory(nfs, root))).rejects.toThrow('without coming to its end');
  });
});

describe('an endless tree', () => {
  /** The root has endless subdirectories, which are empty. */
  const wide = readdirplusHandler(
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
    const caller = new AbortController();
    const before = usedMemoryMib();
    let removed = 0;
    const { nfs } = await startFakeNfs({
      [getattr.number]: getattrDirectory,
      [readdirplus.number]: wide,
      [rmdir.number]: () => {
        // More than the limit of one pass.
        if (++removed === 12_000) caller.abort();
        return wcc;
      },
    });
    let maxUsedMib = 0;
    const measureMemory = (done: number): void => {
      if (done % 4_000 === 0) maxUsedMib = Math.max(maxUsedMib, usedMemoryMib() - before);
    };
    await expect(emptyDirectory(nfs, root, { signal: caller.signal, onProgress: measureMemory })).rejects.toMatchObject(
      {
        failure: 'canceled',
      },
    );
    // The memory of ten thousand directories, not of the hundreds of thousands that the server lists in that time.
    expect(maxUsedMib).toBeLessThan(20);
  });

  test('that contains itself can be stopped, and does not fill the memory', async () => {
    const self = readdirplusHandler(
      (from) => page(from, 1, () => ({ name: 'self', handle: root, attributes: directory })),
      () => true,
    );
    const { nfs } = await startFakeNfs({ [readdirplus.number]: self });
    const caller = new AbortController();
    const before = usedMemoryMib();
    setTimeout(() => caller.abort(), 500);
    await expect(walkTree(nfs, root, () => undefined, { signal: caller.signal })).rejects.toThrow();
    expect(usedMemoryMib() - before).toBeLessThan(20);
  });
});

describe('invalid names in a listing', () => {
  test.each([
    ['with handles', root],
    ['without handles', undefined],
  ])('(%s) are never sent to the server', async (_, handle) => {
    const unusualNames = ['..', '.', '', '/', 'a/b', '../../etc/passwd', 'x\0y', 'n'.repeat(255), 'good'];
    const requestedNames: string[] = [];
    const recordName = (reader: XdrReader): void => {
      reader.opaque(64);
      requestedNames.push(reader.string(10_000));
    };
    const details = handle === undefined ? {} : { handle, attributes };
    const { nfs } = await startFakeNfs({
      [readdirplus.number]: readdirplusHandler(
        () => page(0, unusualNames.length, (i) => ({ name: unusualNames[i] ?? '', ...details })),
        () => true,
      ),
      [getattr.number]: getattrDirectory,
      [lookup.number]: (reader) => {
        recordName(reader);
        const isTree = requestedNames.at(-1) === 'tree';
        return successReply((writer) => {
          writePostAttributes(writer.opaque(root), isTree ? directory : attributes);
          writePostAttributes(writer, undefined);
        });
      },
      [remove.number]: (reader) => {
        recordName(reader);
        return wcc;
      },
      [rmdir.number]: (reader) => {
        recordName(reader);
        return wcc;
      },
    });
    await removeTree(nfs, root, 'tree');
    expect([...new Set(requestedNames)].toSorted()).toEqual(['good', 'n'.repeat(255), 'tree']);
  });
});
