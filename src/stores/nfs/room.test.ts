import { rmSync } from 'node:fs';
import { expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import type { NfsClient } from '#wire/nfs3/index.ts';
import type { Connect } from './connect.ts';
import { createNfsStoreKind } from './kind.ts';

test.each([
  ['10m', 5_000],
  ['2s', 2_000],
])('with timeout=%s, room() waits at most %i ms and ends when its caller aborts', async (timeout, deadlineMs) => {
  const folder = quickFolder('room');
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const fsstatOptions: Parameters<NfsClient['fsstat']>[1][] = [];
  const connect: Connect = async (...args) => {
    const session = await connectToDisk(folder)(...args);
    const fsstat: NfsClient['fsstat'] = (handle, options) => {
      fsstatOptions.push(options);
      return session.nfs.fsstat(handle, options);
    };
    return { ...session, nfs: { ...session.nfs, fsstat } };
  };
  const kind = createNfsStoreKind(systemClock(), connect);
  const store = await openNfs({ uri: 'nfs://nowhere/export', options: { timeout }, kind });
  onTestFinished(() => store.close());
  const caller = new AbortController();
  fsstatOptions.length = 0;
  expect((await store.room({ ...scope, signal: caller.signal })).freeBytes).toBeGreaterThan(0n);
  expect(fsstatOptions).toMatchObject([{ deadlineMs }]);
  caller.abort();
  expect(fsstatOptions[0]?.signal?.aborted).toBe(true);
});
