import { expect, test } from 'vitest';
import type { FileHandle, NfsClient } from '#wire/nfs3/index.ts';
import { createProbe } from './probe.ts';

test('a check fails if the server writes only a part of the probe', async () => {
  const removed: unknown[] = [];
  const nfs = {
    create: async () => ({ handle: Buffer.from('file') }),
    write: async () => ({ count: 3 }),
    getattr: async () => ({ uid: 0, gid: 0, mtime: 1 }),
    remove: async (_folder: unknown, name: unknown) => removed.push(name),
  } as unknown as NfsClient;
  const limits = { signal: new AbortController().signal, deadlineMs: 1_000 };
  {
    await using probe = createProbe(nfs, Buffer.from('root') as FileHandle, 0, limits);
    await expect(probe.write()).rejects.toThrow('the server wrote 3 of 6 bytes');
  }
  expect(removed).toHaveLength(1);
});
