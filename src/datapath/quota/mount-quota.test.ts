import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { createMountQuota } from './mount-quota.ts';

/** Never answers; a call ends when its caller gives up. */
const silentServer = new Proxy({} as NfsClient, {
  get:
    () =>
    (...args: readonly unknown[]): Promise<never> => {
      const { signal } = (args.findLast((arg) => typeof arg === 'object') ?? {}) as CallOptions;
      return new Promise((_, reject) => {
        signal?.addEventListener('abort', () => reject(signal.reason as Error));
      });
    },
});

test('a removed mount does not wait for a dead server, even if a request is pending', async () => {
  const clock = createFakeClock();
  const unmount = new AbortController();
  const quota = createMountQuota({
    nfs: silentServer,
    clock,
    signal: unmount.signal,
    mount: 'stowage:sv1-x.ab',
    failed: () => undefined,
    quota: { bytes: 2 ** 30, ledger: '', host: 'node-1' },
    spec: { root: '', squash: 'all', uid: 4711, gid: 4711, softMs: undefined },
    storedGrowth: { read: () => ({ epoch: 0, growth: 0 }), write: () => undefined },
  });
  const admitted = quota.admit(4096);
  admitted.catch(() => undefined);
  await new Promise(setImmediate);
  unmount.abort(new Error('unmounted'));
  let isClosed = false;
  const closed = quota.close().finally(() => {
    isClosed = true;
  });
  closed.catch(() => undefined);
  clock.advance(9_999);
  await new Promise(setImmediate);
  expect(isClosed).toBe(false);
  clock.advance(1);
  await Promise.allSettled([closed]);
  await expect(admitted).rejects.toThrow('unmounted');
});

describe('while calls of a predecessor may still run', () => {
  /** Successive processes that serve a mount on our own server, and the names that they create in the ledger. */
  async function createSharedVolume() {
    const server = await startOwnServer();
    for (const name of ['data', 'ledger']) mkdirSync(join(server.directory, name));
    const { nfs, root } = await server.mount();
    const [data, folder] = [(await nfs.lookup(root, 'data')).handle, (await nfs.lookup(root, 'ledger')).handle];
    const uid = process.getuid?.() ?? 0;
    const stored = { epoch: 0, growth: 0 };
    return (ready?: Promise<void>) => {
      const createdNames: string[] = [];
      const readdirCalls: string[] = [];
      const recordingNfs: NfsClient = {
        ...nfs,
        readdir: (...args) => {
          readdirCalls.push('readdir');
          return nfs.readdir(...args);
        },
        create: (directory, name, ...how) => {
          if (typeof name === 'string') createdNames.push(name);
          return nfs.create(directory, name, ...how);
        },
      };
      const quota = createMountQuota({
        nfs: recordingNfs,
        mount: 'one',
        signal: new AbortController().signal,
        ready: () => ready,
        failed: (cause) => expect.fail(String(cause)),
        quota: { bytes: 2 ** 30, ledger: Buffer.from(folder).toString('base64'), host: 'node-1' },
        spec: { root: Buffer.from(data).toString('base64'), squash: 'all', uid, gid: uid, softMs: undefined },
        storedGrowth: { read: () => stored, write: (epoch, growth) => void Object.assign(stored, { epoch, growth }) },
      });
      return { quota, made: createdNames, asked: readdirCalls };
    };
  }

  test('nothing in the ledger is changed before they are drained', async () => {
    const start = await createSharedVolume();
    const { promise: drained, resolve } = Promise.withResolvers<void>();
    const { quota, made, asked } = start(drained);
    let isAdmitted = false;
    const admitted = quota.admit(4096).then(() => {
      isAdmitted = true;
    });
    await expect.poll(() => asked.length, { timeout: 10_000 }).toBeGreaterThan(0);
    // Meanwhile another user got everything, so the first one had enough time.
    const other = start();
    await other.quota.admit(0);
    expect([made, isAdmitted]).toEqual([[], false]);
    resolve();
    await admitted;
    expect(made.length).toBeGreaterThan(0);
    await quota.close();
    await other.quota.close();
  });

  test('no process writes to a temporary file of another one', async () => {
    const start = await createSharedVolume();
    const processes = [start(), start()];
    for (const { quota } of processes) {
      await quota.admit(4096);
      quota.recordUsage(4096, 4096);
      await quota.close();
    }
    const [first, second] = processes.map(({ made }) => new Set(made.filter((name) => name.startsWith('tmp.'))));
    expect(first?.size).toBeGreaterThan(0);
    expect(second?.size).toBeGreaterThan(0);
    expect(first?.isDisjointFrom(second ?? new Set())).toBe(true);
  });
});
