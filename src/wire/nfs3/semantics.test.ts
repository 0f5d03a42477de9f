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

/** Replies that RFC 1813 allows, but that the servers of the interoperability tests do not send. */
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
const errorReply =
  (status: number): Reply =>
  (writer) => {
    writer.u32(status).u32(0).u32(0);
    return undefined;
  };
const getattrReply: Reply = (writer) => {
  writeAttributes(writer.u32(0), attributes);
  return undefined;
};

describe('a JUKEBOX reply (try later)', () => {
  test('makes the client retry after a pause', async () => {
    const getattrCalls: number[] = [];
    const { nfs } = await startFakeNfs({
      [getattr.number]: () => (getattrCalls.push(performance.now()) < 3 ? errorReply(nfsStatus.JUKEBOX) : getattrReply),
    });
    expect((await nfs.getattr(handle)).type).toBe(fileType.directory);
    expect(getattrCalls).toHaveLength(3);
    const [first = 0, second = 0] = getattrCalls;
    expect(second - first).toBeGreaterThan(50);
  });

  test('does not extend the deadline', async () => {
    let getattrCalls = 0;
    const { nfs } = await startFakeNfs({
      [getattr.number]: () => {
        getattrCalls++;
        return errorReply(nfsStatus.JUKEBOX);
      },
    });
    await expect(nfs.getattr(handle, { deadlineMs: 5_000 })).rejects.toThrow('GETATTR: NFS3ERR_JUKEBOX');
    // After 0.1, 0.3, 0.7, 1.5 and 3.1 s. The next time would be after 6.3 s.
    expect(getattrCalls).toBeLessThanOrEqual(6);
  });

  test('is not retried after the caller aborts', async () => {
    const caller = new AbortController();
    let getattrCalls = 0;
    const { nfs } = await startFakeNfs({
      [getattr.number]: () => {
        // Abort while the client waits before the third call.
        if (++getattrCalls === 2) setImmediate(() => caller.abort());
        return errorReply(nfsStatus.JUKEBOX);
      },
    });
    await expect(nfs.getattr(handle, { signal: caller.signal })).rejects.toThrow();
    expect(getattrCalls).toBe(2);
  });

  test('between two executed copies does not hide that the first was executed', async () => {
    const answers = [0, nfsStatus.JUKEBOX, nfsStatus.EXIST];
    const { port } = await startFakeNfs({
      [mkdir.number]: () => errorReply(answers.shift() ?? 0),
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
    const created = await createNfsClient(rpc, systemClock()).mkdir(handle, 'made', {});
    expect(Buffer.from(created.handle)).toEqual(handle);
    expect(answers).toEqual([]);
  });
});

describe('the size of transfers', () => {
  /** Starts a server that stores written data, and reads or writes at most `maxBytes` bytes in one call. */
  async function startStoringServer(maxBytes: number): Promise<{ nfs: NfsClient; content: Buffer; sizes: number[] }> {
    const content = Buffer.alloc(3 * 1024 * 1024);
    const sizes: number[] = [];
    const { nfs } = await startFakeNfs({
      [write.number]: (reader) => {
        reader.opaque(64);
        const offset = reader.size();
        reader.skipBytes(8);
        const data = reader.opaque(1 << 30);
        sizes.push(data.length);
        const count = data.copy(content, offset, 0, Math.min(maxBytes, data.length));
        return (writer) => void writer.u32(0).u32(0).u32(0).u32(count).u32(stability.unstable).u64(7n) as undefined;
      },
      [commit.number]: () => (writer) => void writer.u32(0).u32(0).u32(0).u64(7n) as undefined,
      [read.number]: (reader) => {
        reader.opaque(64);
        const offset = reader.size();
        const wanted = reader.u32();
        sizes.push(wanted);
        const data = content.subarray(offset, offset + Math.min(maxBytes, wanted));
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
    async (maxBytes) => {
      const { nfs, content, sizes } = await startStoringServer(maxBytes);
      const part = data.subarray(0, maxBytes * 30);
      const writer = createFileWriter(nfs, handle, { size: maxBytes * 7 });
      await writer.write(0, part);
      await writer.flush();
      expect(content.subarray(0, part.length).equals(part)).toBe(true);
      expect(sizes.length).toBeGreaterThanOrEqual(30);
      const destination = Buffer.alloc(part.length);
      expect(await readFully(nfs, handle, 0, destination)).toBe(part.length);
      expect(destination.equals(part)).toBe(true);
    },
  );

  test('is at most 1 MiB, also if the server accepts more', async () => {
    const { nfs, content, sizes } = await startStoringServer(Number.POSITIVE_INFINITY);
    const writer = createFileWriter(nfs, handle);
    await writer.write(0, data);
    await writer.flush();
    expect(content.equals(data)).toBe(true);
    expect(await readFully(nfs, handle, 0, Buffer.alloc(data.length))).toBe(data.length);
    expect(Math.max(...sizes)).toBe(1024 * 1024);
  });
});

describe('the client never sends the invalid name', () => {
  test.each([['n'.repeat(256)], [Buffer.alloc(256, 0xfe)], ['a/b'], ['..'], ['.'], [''], ['a\0b']])(
    '%j',
    async (name) => {
      let calls = 0;
      const count = (): Reply => {
        calls++;
        return errorReply(nfsStatus.IO);
      };
      const { nfs } = await startFakeNfs(Object.fromEntries(Array.from({ length: 22 }, (_, i) => [i, count])));
      const [invalidTarget, validTarget] = [
        { directory: handle, name },
        { directory: handle, name: 'good' },
      ];
      const all = [
        () => nfs.lookup(handle, name),
        () => nfs.create(handle, name, { mode: 'guarded', set: {} }),
        () => nfs.mkdir(handle, name, {}),
        () => nfs.symlink(handle, name, 'target', {}),
        () => nfs.mknod({ ...invalidTarget, type: fileType.fifo, set: {} }),
        () => nfs.remove(handle, name),
        () => nfs.rmdir(handle, name),
        () => nfs.rename(invalidTarget, validTarget),
        () => nfs.rename(validTarget, invalidTarget),
        () => nfs.link(handle, invalidTarget),
      ];
      for (const one of all) await expect(one()).rejects.toMatchObject({ name: 'NameError' });
      expect(calls).toBe(0);
    },
  );
});
