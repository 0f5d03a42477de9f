import { expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { createMountQuota } from './mount-quota.ts';

/** Never answers; a call ends when its caller gives up. */
const silent = new Proxy({} as NfsClient, {
  get:
    () =>
    (...args: readonly unknown[]): Promise<never> => {
      const { signal } = (args.findLast((arg) => typeof arg === 'object') ?? {}) as CallOptions;
      return new Promise((_, reject) => {
        signal?.addEventListener('abort', () => reject(signal.reason as Error));
      });
    },
});

test('a mount that is over does not wait for a server that is gone, also if it was asked for something', async () => {
  const clock = createFakeClock();
  const gone = new AbortController();
  const quota = createMountQuota({
    ...{ nfs: silent, clock, signal: gone.signal, mount: 'stowage:sv1-x.ab', failed: () => undefined },
    quota: { bytes: 2 ** 30, ledger: '', host: 'node-1' },
    spec: { root: '', squash: 'all', uid: 4711, gid: 4711, softMs: undefined },
    kept: { read: () => ({ epoch: 0, growth: 0 }), write: () => undefined },
  });
  const admitted = quota.admit(4096);
  admitted.catch(() => undefined);
  await new Promise(setImmediate);
  gone.abort(new Error('unmounted'));
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
