import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { startFakeNfs } from '#testing/fake-nfs.ts';
import { createRpcClient } from '../rpc/client.ts';
import type { Reply } from '../rpc/server.ts';
import { createNfsClient, type NfsClient } from './client.ts';
import { readFully } from './file-reader.ts';
import { createFileWriter } from './file-writer.ts';
import { commit, getattr, lookup, mkdir, read, write } from './procedures.ts';
import { nfsStatus } from './status.ts';
import { type Attributes, fileType, stability, writeAttributes, writePostAttributes } from './structures.ts';

/** What servers may do, and the ones we can run do not. */
const handle = Buffer.from('handle');
const attributes: Attributes = {
  type: fileType.directory,
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
const refused =
  (status: number): Reply =>
  (writer) => {
    writer.u32(status).u32(0).u32(0);
    return undefined;
  };
const got: Reply = (writer) => {
  writeAttributes(writer.u32(0), attributes);
  return undefined;
};

describe('a JUKEBOX reply (try later)', () => {
  test('makes the client retry after a pause', async () => {
    const asked: number[] = [];
    const { nfs } = await startFakeNfs({
      [getattr.number]: () => (asked.push(performance.now()) < 3 ? refused(nfsStatus.JUKEBOX) : got),
    });
    expect((await nfs.getattr(handle)).type).toBe(fileType.directory);
    expect(asked).toHaveLength(3);
    const [first = 0, second = 0] = asked;
    expect(second - first).toBeGreaterThan(50);
  });

  test('does not extend the deadline', async () => {
    let asked = 0;
    const { nfs } = await startFakeNfs({
      [getattr.number]: () => {
        asked++;
        return refused(nfsStatus.JUKEBOX);
      },
    });
    await expect(nfs.getattr(handle, { deadlineMs: 5_000 })).rejects.toThrow('GETATTR: NFS3ERR_JUKEBOX');
    // After 0.1, 0.3, 0.7, 1.5 and 3.1 s. The next time would be after 6.3 s.
    expect(asked).toBeLessThanOrEqual(6);
  });

  test('is not retried after the caller aborts', async () => {
    const mine = new AbortController();
    let asked = 0;
    const { nfs } = await startFakeNfs({
      [getattr.number]: () => {
        // It waits before it asks for the third time.
        if (++asked === 2) setImmediate(() => mine.abort());
        return refused(nfsStatus.JUKEBOX);
      },
    });
    await expect(nfs.getattr(handle, { signal: mine.signal })).rejects.toThrow();
    expect(asked).toBe(2);
  });

  test('between two executed copies does not hide that the first was executed', async () => {
    const answers = [0, nfsStatus.JUKEBOX, nfsStatus.EXIST];
    const { port } = await startFakeNfs({
      [mkdir.number]: () => refused(answers.shift() ?? 0),
      [lookup.number]: () => (writer) => {
        writePostAttributes(writer.u32(0).opaque(handle), attributes);
        writePostAttributes(writer, undefined);
        return undefined;
      },
    });
    const proxy = await startProxy({ host: '127.0.0.1', port });
    const rpc = createRpcClient({ clock: systemClock(), addresses: [proxy] });
    onTestFinished(() => rpc.close());
    proxy.cutReplyTo(mkdir.number);
    const made = await createNfsClient(rpc, systemClock()).mkdir(handle, 'made', {});
    expect(Buffer.from(made.handle)).toEqual(handle);
    expect(answers).toEqual([]);
  });
});

describe('the size of transfers', () => {
  /** Keeps what is written, and takes at most so much of each call. */
  async function keeping(most: number): Promise<{ nfs: NfsClient; content: Buffer; sizes: number[] }> {
    const content = Buffer.alloc(3 * 1024 * 1024);
    const sizes: number[] = [];
    const { nfs } = await startFakeNfs({
      [write.number]: (reader) => {
        reader.opaque(64);
        const offset = reader.size();
        reader.skipBytes(8);
        const data = reader.opaque(1 << 30);
        sizes.push(data.length);
        const count = data.copy(content, offset, 0, Math.min(most, data.length));
        return (writer) => void writer.u32(0).u32(0).u32(0).u32(count).u32(stability.unstable).u64(7n) as undefined;
      },
      [commit.number]: () => (writer) => void writer.u32(0).u32(0).u32(0).u64(7n) as undefined,
      [read.number]: (reader) => {
        reader.opaque(64);
        const offset = reader.size();
        const wanted = reader.u32();
        sizes.push(wanted);
        const data = content.subarray(offset, offset + Math.min(most, wanted));
        return (writer) => {
          writer
            .u32(0)
            .u32(0)
            .u32(data.length)
            .bool(offset + data.length >= content.length)
            .u32(data.length);
          return data;
        };
      },
    });
    return { nfs, content, sizes };
  }

  const data = Buffer.from(Array.from({ length: 3 * 1024 * 1024 }, (_, i) => (i * 31 + (i >> 8)) & 255));

  test.each([1000, 65_537])(
    'all data are transferred if the server accepts and returns at most %d bytes',
    async (most) => {
      const { nfs, content, sizes } = await keeping(most);
      const part = data.subarray(0, most * 30);
      const writer = createFileWriter(nfs, handle, { size: most * 7 });
      await writer.write(0, part);
      await writer.flush();
      expect(content.subarray(0, part.length).equals(part)).toBe(true);
      expect(sizes.length).toBeGreaterThanOrEqual(30);
      const into = Buffer.alloc(part.length);
      expect(await readFully(nfs, handle, 0, into)).toBe(part.length);
      expect(into.equals(part)).toBe(true);
    },
  );

  test('a server that accepts a gigabyte gets a megabyte', async () => {
    const { nfs, content, sizes } = await keeping(Number.POSITIVE_INFINITY);
    const writer = createFileWriter(nfs, handle);
    await writer.write(0, data);
    await writer.flush();
    expect(content.equals(data)).toBe(true);
    expect(await readFully(nfs, handle, 0, Buffer.alloc(data.length))).toBe(data.length);
    expect(Math.max(...sizes)).toBe(1024 * 1024);
  });
});

describe('invalid names that the client never sends', () => {
  test.each([['n'.repeat(256)], [Buffer.alloc(256, 0xfe)], ['a/b'], ['..'], ['.'], [''], ['a\0b']])(
    '%j',
    async (name) => {
      let calls = 0;
      const count = (): Reply => {
        calls++;
        return refused(nfsStatus.IO);
      };
      const { nfs } = await startFakeNfs(Object.fromEntries(Array.from({ length: 22 }, (_, i) => [i, count])));
      const [place, good] = [
        { directory: handle, name },
        { directory: handle, name: 'good' },
      ];
      const all = [
        () => nfs.lookup(handle, name),
        () => nfs.create(handle, name, { mode: 'guarded', set: {} }),
        () => nfs.mkdir(handle, name, {}),
        () => nfs.symlink(handle, name, 'target', {}),
        () => nfs.mknod({ ...place, type: fileType.fifo, set: {} }),
        () => nfs.remove(handle, name),
        () => nfs.rmdir(handle, name),
        () => nfs.rename(place, good),
        () => nfs.rename(good, place),
        () => nfs.link(handle, place),
      ];
      for (const one of all) await expect(one()).rejects.toMatchObject({ name: 'NameError' });
      expect(calls).toBe(0);
    },
  );
});
