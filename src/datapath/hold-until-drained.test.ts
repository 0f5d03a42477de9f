import { constants } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { holdUntilDrained } from './hold-until-drained.ts';

const name = Buffer.from('name');

function createHeldOperations({ softMs }: { readonly softMs?: number } = {}) {
  const mountEnded = new AbortController();
  const clock = createFakeClock();
  const started: string[] = [];
  const interrupt = new AbortController();
  const request: Request = { uid: 0, gid: 0, pid: 1, slot: 0, resent: false, signal: interrupt.signal };
  const { promise, resolve } = Promise.withResolvers<void>();
  let drained: Promise<void> | undefined = promise;
  const names = ['mkdir', 'open', 'flush', 'fsync', 'release', 'lookup'] as const;
  const recordingOperations = Object.fromEntries(names.map((each) => [each, () => void started.push(each)]));
  const operations = holdUntilDrained(recordingOperations as Partial<Operations>, {
    clock,
    ready: () => drained,
    softMs,
    mountEnded: mountEnded.signal,
  }) as Operations;
  const ready = (): void => {
    drained = undefined;
    resolve();
  };
  return { clock, done: started, on: operations, request, interrupt, ready, over: mountEnded };
}

describe("until the predecessor's connections are drained", () => {
  test('changes wait, then run in their order', async () => {
    const { on, done, request, ready } = createHeldOperations();
    const all = [on.mkdir(1, name, 0o755, request), on.open(2, constants.O_RDWR, request)];
    await new Promise(setImmediate);
    expect(done).toEqual([]);
    ready();
    await Promise.all(all);
    expect(done).toEqual(['mkdir', 'open']);
    await on.mkdir(1, name, 0o755, request);
    expect(done).toHaveLength(3);
  });

  test('reads and releases do not wait', () => {
    const { on, done, request } = createHeldOperations();
    void on.lookup(1, name, request);
    void on.open(2, constants.O_RDONLY, request);
    void on.flush(2, 0, request);
    void on.fsync(2, { fh: 0, dataOnly: false }, request);
    void on.release(2, { fh: 0, unlock: undefined }, request);
    expect(done).toEqual(['lookup', 'open', 'flush', 'fsync', 'release']);
  });

  test('nothing is started after the mount is gone', async () => {
    const { on, done, request, over, ready } = createHeldOperations();
    const mkdirResult = on.mkdir(1, name, 0o755, request);
    over.abort();
    await expect(mkdirResult).rejects.toThrow('EINTR');
    await expect(on.mkdir(1, name, 0o755, request)).rejects.toThrow('EINTR');
    ready();
    await new Promise(setImmediate);
    expect(done).toEqual([]);
  });

  test('an interrupted request stops waiting', async () => {
    const { on, done, request, interrupt, clock, ready } = createHeldOperations();
    const mkdirResult = on.mkdir(1, name, 0o755, request);
    interrupt.abort();
    const rejection = expect(mkdirResult).rejects.toThrow('EINTR');
    for (let i = 0; i < 8; i++) clock.advance(250);
    await rejection;
    ready();
    await new Promise(setImmediate);
    expect(done).toEqual([]);
  });

  test('soft: a waiting request fails with EIO after the timeout', async () => {
    const { on, request, clock } = createHeldOperations({ softMs: 3_000 });
    const rejection = expect(on.mkdir(1, name, 0o755, request)).rejects.toThrow('EIO');
    clock.advance(3_000);
    await rejection;
  });
});
