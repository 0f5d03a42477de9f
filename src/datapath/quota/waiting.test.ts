import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import { openFileSystem } from '../file-system.ts';
import { createMountQuota } from './mount-quota.ts';

const rootNodeId = 1;
const name = (text: string): Buffer => Buffer.from(text);
const inBase64 = (handle: FileHandle): string => Buffer.from(handle).toString('base64');

describe('while the usage is unknown because the counting node died', () => {
  async function openWithoutBase(softMs?: number) {
    const server = await startOwnServer();
    const [data, ledger] = [join(server.directory, 'data'), join(server.directory, 'ledger')];
    for (const folder of [data, ledger]) mkdirSync(folder);
    writeFileSync(join(ledger, 'scan'), 'of a node that is dead');
    writeFileSync(join(data, 'old'), 'x');
    const { nfs, root } = await server.mount();
    const [volume, folder] = [(await nfs.lookup(root, 'data')).handle, (await nfs.lookup(root, 'ledger')).handle];
    const uid = process.getuid?.() ?? 0;
    const clock = systemClock();
    const unmount = new AbortController();
    onTestFinished(() => unmount.abort());
    const quota = createMountQuota({
      nfs,
      clock,
      signal: unmount.signal,
      mount: 'one',
      failed: () => undefined,
      quota: { bytes: 2 ** 20, ledger: inBase64(folder), host: 'node-1' },
      spec: { root: inBase64(volume), squash: 'all', uid, gid: uid, softMs },
      storedGrowth: { read: () => ({ epoch: 0, growth: 0 }), write: () => undefined },
    });
    const operations = openFileSystem({
      nfs,
      quota,
      clock,
      nodes: createMemoryNodes(volume),
      proofs: createMemoryProofs(),
      notify: () => undefined,
      options: { identity: asCaller, softMs },
    }).operations as Operations;
    let lastPlace = 0;
    const request = (signal = new AbortController().signal): Request => ({
      uid,
      gid: uid,
      pid: 1,
      slot: ++lastPlace,
      resent: false,
      signal,
    });
    const { entry, opened } = await operations.create(rootNodeId, name('new'), { flags: 1, mode: 0o100600 }, request());
    const write = async (offset = 0, signal?: AbortSignal): Promise<number> =>
      await operations.write(
        entry.node,
        { fh: opened.fh, offset, flags: 0, openFlags: 1 },
        Buffer.from('data'),
        request(signal),
      );
    return { on: operations, request, write, clock, data, ledger };
  }

  test('soft: a write fails after the timeout, and a removal succeeds without being counted', async () => {
    const softMs = 500;
    const { on, request, write, clock, data } = await openWithoutBase(softMs);
    const since = clock.elapsed();
    await expect(write()).rejects.toMatchObject({ code: 'EIO' });
    expect(clock.elapsed() - since).toBeLessThan(softMs + 5_000);
    expect(readFileSync(join(data, 'new'), 'utf8')).toBe('');
    await on.lookup(rootNodeId, name('old'), request());
    await on.unlink(rootNodeId, name('old'), request());
    expect(existsSync(join(data, 'old'))).toBe(false);
  });

  test('hard: a write waits until the usage is known; a killed process stops waiting', async () => {
    const { write, data, ledger } = await openWithoutBase();
    const interrupt = new AbortController();
    const [waitingWrite, interruptedWrite] = [write(), write(8192, interrupt.signal)];
    interruptedWrite.catch(() => undefined);
    expect(await Promise.race([interruptedWrite, waitingWrite, sleep(1_500, 'waits')])).toBe('waits');
    interrupt.abort();
    await expect(interruptedWrite).rejects.toMatchObject({ code: 'EINTR' });
    const base = { version: 1, epoch: 1, used: 0, counting: false, countedAt: Date.now() };
    writeFileSync(join(ledger, 'base'), JSON.stringify(base));
    rmSync(join(ledger, 'scan'));
    expect(await waitingWrite).toBe(4);
    expect(readFileSync(join(data, 'new'), 'utf8')).toBe('data');
  });
});
