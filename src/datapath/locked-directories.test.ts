import { setImmediate as turn } from 'node:timers/promises';
import { beforeEach, describe, expect, test } from 'vitest';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import type { Entry, Operations, Request } from '#wire/fuse/operations.ts';
import { createDentryShrinker } from './dentry-shrinker.ts';
import { createLockedDirectories, type LockedDirectories } from './locked-directories.ts';
import type { SeenNode } from './seen-nodes.ts';

const nobody = {} as Request;
const name = Buffer.from('name');
const nothing: Entry = { node: 0, generation: 0, attr: undefined, entryMs: 0, attrMs: 0 };

describe('locked directories', () => {
  let clock: FakeClock;
  let lockedDirectories: LockedDirectories;
  /** Pending operations. */
  let answers: PromiseWithResolvers<never>[];
  let operations: Partial<Operations>;

  beforeEach(() => {
    clock = createFakeClock();
    lockedDirectories = createLockedDirectories(clock);
    answers = [];
    const asks = (): Promise<never> => {
      const answer = Promise.withResolvers<never>();
      answers.push(answer);
      return answer.promise;
    };
    operations = lockedDirectories.tracked({
      lookup: asks,
      create: asks,
      rename: asks,
      link: asks,
      setattr: asks,
      read: asks,
    });
  });

  const answer = async (): Promise<void> => {
    for (const { resolve } of answers.splice(0)) resolve(nothing as never);
    await turn();
  };
  const allowed = (...directories: readonly number[]): readonly number[] =>
    directories.filter((directory) => lockedDirectories.allows(directory));

  test.each<[string, () => unknown, readonly number[]]>([
    ['a name', () => operations.lookup?.(5, name, nobody), [5]],
    ['two directories', () => operations.rename?.({ parent: 5, name }, { parent: 6, name }, 0, nobody), [5, 6]],
    ['a second name', () => operations.link?.(9, 5, name, nobody), [5]],
    ['the directory itself', () => operations.setattr?.(5, {}, nobody), [5]],
    ['data', () => operations.read?.(5, { fh: 0, offset: 0, size: 1 }, nobody), []],
  ])('a pending request about %s locks its directories until it is answered', async (_, ask, held) => {
    ask();
    expect(allowed(5, 6, 7, 9)).toEqual([5, 6, 7, 9].filter((each) => !held.includes(each)));
    await answer();
    expect(allowed(5, 6, 7, 9)).toEqual([5, 6, 7, 9]);
  });

  test('several requests lock a directory until the last one ends, including failures', async () => {
    const first = operations.create?.(5, name, { flags: 0, mode: 0 }, nobody);
    void operations.lookup?.(5, name, nobody);
    answers.shift()?.reject(new Error('refused'));
    await expect(first).rejects.toThrow('refused');
    expect(allowed(5)).toEqual([]);
    await answer();
    expect(allowed(5)).toEqual([5]);
  });

  test('a request answered at once locks nothing', () => {
    const known = lockedDirectories.tracked({ lookup: () => nothing });
    expect(known.lookup?.(5, name, nobody)).toBe(nothing);
    expect(allowed(5)).toEqual([5]);
  });

  test('a slow server locks all directories', async () => {
    void operations.lookup?.(5, name, nobody);
    clock.advance(101);
    expect(allowed(6)).toEqual([]);
    await answer();
    expect(allowed(6)).toEqual([6]);
  });

  test('a slow setattr of a file locks nothing', () => {
    void operations.setattr?.(9, {}, nobody);
    clock.advance(10_000);
    expect(allowed(6)).toEqual([6]);
  });

  test('a directory that is always busy is released after a while', async () => {
    for (let ms = 0; ms < 1_000; ms += 50) {
      void operations.lookup?.(5, name, nobody);
      expect(allowed(5)).toEqual([]);
      clock.advance(50);
      const before = answers.splice(0);
      void operations.lookup?.(5, name, nobody);
      for (const { resolve } of before) resolve(nothing as never);
      await turn();
    }
    expect(allowed(5)).toEqual([5]);
  });

  describe('the dentry shrinker', () => {
    const told: string[] = [];
    const places = new Map<number, SeenNode>();
    const lost = new Map<number, 'told' | 'untold'>();

    const letGo = (count: number): void =>
      createDentryShrinker({
        nodes: {
          get: (id) => ({ id, generation: 0, handle: Buffer.alloc(0), opens: id === 13 ? 1 : 0 }),
          lost: (id) => (lost.has(id) ? 'ENOSPC' : undefined),
          isLossTold: (id) => lost.get(id) === 'told',
        },
        server: {
          oldest: (most) => [...places.values()].slice(0, most),
          seen: (id, parent, key) => {
            places.delete(id);
            places.set(id, { id, parent, key, isDirectory: id === 12 });
          },
          forget: (id) => void places.delete(id),
        },
        notifyApart: async (bytes) => {
          const [key = ''] = /[a-z]+/.exec(bytes.toString('latin1')) ?? [];
          told.push(key);
          places.delete(10 + 'abcdefgh'.indexOf(key));
          await turn();
        },
        lockedDirectories,
      })(count);
    const settled = async (): Promise<void> => {
      for (let i = 0; i < 50; i++) await turn();
    };

    beforeEach(() => {
      told.splice(0);
      places.clear();
      lost.clear();
      // Names a to h, alternating between two directories; c is a directory, and d is open.
      for (const [i, key] of [...'abcdefgh'].entries())
        places.set(10 + i, { id: 10 + i, parent: 5 + (i % 2), key, isDirectory: key === 'c' });
    });

    test('drops the least recently seen unused dentries', async () => {
      letGo(3);
      await settled();
      expect(told).toEqual(['a', 'b', 'e']);
    });

    test('keeps nodes with an unreported data loss', async () => {
      lost.set(10, 'untold').set(11, 'told');
      letGo(3);
      await settled();
      expect(told).toEqual(['b', 'e', 'f']);
    });

    test('skips dentries in locked directories and drops them when the requests are answered', async () => {
      void operations.lookup?.(5, name, nobody);
      letGo(6);
      await settled();
      expect(told).toEqual(['b', 'f', 'h']);
      await answer();
      await settled();
      expect(told.toSorted()).toEqual(['a', 'b', 'e', 'f', 'g', 'h']);
    });

    test('ends when nothing can be dropped', async () => {
      letGo(1_000);
      await settled();
      expect([...places.values()].map(({ key }) => key).toSorted()).toEqual(['c', 'd']);
      places.clear();
      letGo(5);
      await settled();
      expect(told).toHaveLength(6);
    });
  });
});
