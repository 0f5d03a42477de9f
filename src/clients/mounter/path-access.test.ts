import { setImmediate } from 'node:timers/promises';
import { beforeEach, describe, expect, test } from 'vitest';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { mountTable, parseMountinfo } from './mountinfo.ts';
import { createPathAccess, type PathAccess } from './path-access.ts';

const servers = ['/a', '/b', '/c', '/d'];
const table = mountTable(
  parseMountinfo(
    ['1 0 8:1 / / rw - ext4 x rw', ...servers.map((at, n) => `${n + 2} 1 0:${n} / ${at} rw - nfs x rw`)].join('\n'),
  ),
);

describe('work on a path', () => {
  let clock: FakeClock;
  let accessPath: PathAccess;
  let cancel: AbortController;
  let startedPaths: string[];
  const target = (path: string) => ({ path, table, signal: cancel.signal });
  /** The kernel's answer, which the test gives. */
  const startHungWork = (path: string) => {
    const { promise, resolve } = Promise.withResolvers<unknown>();
    const work = accessPath(target(path), () => {
      startedPaths.push(path);
      return promise;
    });
    work.catch(() => undefined);
    return { looking: work, answer: resolve };
  };
  const passDeadline = async (): Promise<void> => {
    await setImmediate();
    // The deadline, then the grace period for work that respects the signal.
    clock.advance(15_000);
    await setImmediate();
    clock.advance(2_000);
  };

  beforeEach(() => {
    clock = createFakeClock();
    accessPath = createPathAccess(clock);
    cancel = new AbortController();
    startedPaths = [];
  });

  test('on a dead server times out, and no other work starts there', async () => {
    const first = startHungWork('/a/x');
    const second = startHungWork('/a/y');
    await passDeadline();
    for (const [path, { looking }] of [
      ['/a/x', first],
      ['/a/y', second],
    ] as const) {
      await expect(looking).rejects.toMatchObject({
        code: 'unavailable',
        reason: 'path-no-answer',
        message: `${path} cannot be accessed: its disk or server does not answer`,
      });
    }
    expect(await accessPath(target('/mnt/x'), async () => 'elsewhere')).toBe('elsewhere');
    expect(startedPaths).toEqual(['/a/x']);
    first.answer('at last');
    expect(await accessPath(target('/a/z'), async () => 'back')).toBe('back');
  });

  test('is limited to three at once, whatever the mounts', async () => {
    const works = servers.map((server) => startHungWork(server));
    await setImmediate();
    expect(startedPaths).toEqual(['/a', '/b', '/c']);
    works[1]?.answer('b');
    expect(await works[1]?.looking).toBe('b');
    await setImmediate();
    expect(startedPaths).toEqual(servers);
    works[3]?.answer('d');
    expect(await works[3]?.looking).toBe('d');
    expect(await accessPath(target('/mnt/x'), async () => 'free')).toBe('free');
  });

  test("that waits for a slot ends with its caller, who gets the signal's reason", async () => {
    const first = startHungWork('/a/x');
    const second = startHungWork('/a/y');
    await setImmediate();
    cancel.abort(new Error('enough'));
    await expect(second.looking).rejects.toThrow('enough');
    await setImmediate();
    clock.advance(2_000);
    await expect(first.looking).rejects.toThrow('enough');
    expect(startedPaths).toEqual(['/a/x']);
  });

  test('that ends too late releases its result', async () => {
    const { promise, resolve } = Promise.withResolvers<AsyncDisposable>();
    const work = accessPath(target('/a/x'), () => promise);
    work.catch(() => undefined);
    await passDeadline();
    await expect(work).rejects.toMatchObject({ reason: 'path-no-answer' });
    const { promise: disposed, resolve: resolveDisposed } = Promise.withResolvers<void>();
    resolve({ [Symbol.asyncDispose]: async () => resolveDisposed() });
    await disposed;
  });

  test('that fails rejects with its error', async () => {
    await expect(accessPath(target('/a/x'), () => Promise.reject(new Error('no')))).rejects.toThrow('no');
    expect(await accessPath(target('/a/x'), async () => 'next')).toBe('next');
  });
});
