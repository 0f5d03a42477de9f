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
  let look: PathAccess;
  let cancel: AbortController;
  let begun: string[];
  const at = (path: string) => ({ path, table, signal: cancel.signal });
  /** The kernel's answer, which the test gives. */
  const hung = (path: string) => {
    const { promise, resolve } = Promise.withResolvers<unknown>();
    const looking = look(at(path), () => {
      begun.push(path);
      return promise;
    });
    looking.catch(() => undefined);
    return { looking, answer: resolve };
  };
  const pass = async (): Promise<void> => {
    await setImmediate();
    // The deadline, then the grace period for work that respects the signal.
    clock.advance(15_000);
    await setImmediate();
    clock.advance(2_000);
  };

  beforeEach(() => {
    clock = createFakeClock();
    look = createPathAccess(clock);
    cancel = new AbortController();
    begun = [];
  });

  test('on a dead server times out, and no other work starts there', async () => {
    const first = hung('/a/x');
    const second = hung('/a/y');
    await pass();
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
    expect(await look(at('/mnt/x'), async () => 'elsewhere')).toBe('elsewhere');
    expect(begun).toEqual(['/a/x']);
    first.answer('at last');
    expect(await look(at('/a/z'), async () => 'back')).toBe('back');
  });

  test('is limited to three at once, whatever the mounts', async () => {
    const looks = servers.map((server) => hung(server));
    await setImmediate();
    expect(begun).toEqual(['/a', '/b', '/c']);
    looks[1]?.answer('b');
    expect(await looks[1]?.looking).toBe('b');
    await setImmediate();
    expect(begun).toEqual(servers);
    looks[3]?.answer('d');
    expect(await looks[3]?.looking).toBe('d');
    expect(await look(at('/mnt/x'), async () => 'free')).toBe('free');
  });

  test("that waits for a slot ends with its caller, who gets the signal's reason", async () => {
    const first = hung('/a/x');
    const second = hung('/a/y');
    await setImmediate();
    cancel.abort(new Error('enough'));
    await expect(second.looking).rejects.toThrow('enough');
    await setImmediate();
    clock.advance(2_000);
    await expect(first.looking).rejects.toThrow('enough');
    expect(begun).toEqual(['/a/x']);
  });

  test('that ends too late releases its result', async () => {
    const { promise, resolve } = Promise.withResolvers<AsyncDisposable>();
    const looking = look(at('/a/x'), () => promise);
    looking.catch(() => undefined);
    await pass();
    await expect(looking).rejects.toMatchObject({ reason: 'path-no-answer' });
    const { promise: gone, resolve: letGo } = Promise.withResolvers<void>();
    resolve({ [Symbol.asyncDispose]: async () => letGo() });
    await gone;
  });

  test('that fails rejects with its error', async () => {
    await expect(look(at('/a/x'), () => Promise.reject(new Error('no')))).rejects.toThrow('no');
    expect(await look(at('/a/x'), async () => 'next')).toBe('next');
  });
});
