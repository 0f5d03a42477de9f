import { setImmediate as turn } from 'node:timers/promises';
import { beforeEach, describe, expect, test } from 'vitest';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import type { Entry, Operations, Request } from '#wire/fuse/operations.ts';
import { createDentryShrinker } from './dentry-shrinker.ts';
import { createLockedDirectories, type LockedDirectories } from './locked-directories.ts';
import type { SeenNode } from './seen-nodes.ts';

const anyRequest = {} as Request;
const name = Buffer.from('name');
const emptyEntry: Entry = { node: 0, generation: 0, attr: undefined, entryMs: 0, attrMs: 0 };

describe('locked directories', () => {
  let clock: FakeClock;
  let lockedDirectories: LockedDirectories;
  /** Pending operations. */
  let pendingAnswers: PromiseWithResolvers<never>[];
  let operations: Partial<Operations>;

  beforeEach(() => {
    clock = createFakeClock();
    lockedDirectories = createLockedDirectories(clock);
    pendingAnswers = [];
    const startPending = (): Promise<never> => {
      const answer = Promise.withResolvers<never>();
      pendingAnswers.push(answer);
      return answer.promise;
    };
    operations = lockedDirectories.track({
      lookup: startPending,
      create: startPending,
      rename: startPending,
      link: startPending,
      setattr: startPending,
      read: startPending,
    });
  });

  const answerAll = async (): Promise<void> => {
    for (const { resolve } of pendingAnswers.splice(0)) resolve(emptyEntry as never);
    await turn();
  };
  const allowedOf = (...directories: readonly number[]): readonly number[] =>
    directories.filter((directory) => lockedDirectories.allows(directory));

  test.each<[string, () => unknown, readonly number[]]>([
    ['a name', () => operations.lookup?.(5, name, anyRequest), [5]],
    ['two directories', () => operations.rename?.({ parent: 5, name }, { parent: 6, name }, 0, anyRequest), [5, 6]],
    ['a second name', () => operations.link?.(9, 5, name, anyRequest), [5]],
    ['the directory itself', () => operations.setattr?.(5, {}, anyRequest), [5]],
    ['data', () => operations.read?.(5, { fh: 0, offset: 0, size: 1 }, anyRequest), []],
  ])('a pending request about %s locks its directories until it is answered', async (_, startRequest, lockedIds) => {
    startRequest();
    expect(allowedOf(5, 6, 7, 9)).toEqual([5, 6, 7, 9].filter((each) => !lockedIds.includes(each)));
    await answerAll();
    expect(allowedOf(5, 6, 7, 9)).toEqual([5, 6, 7, 9]);
  });

  test('several requests lock a directory until the last one ends, including failures', async () => {
    const first = operations.create?.(5, name, { flags: 0, mode: 0 }, anyRequest);
    void operations.lookup?.(5, name, anyRequest);
    pendingAnswers.shift()?.reject(new Error('refused'));
    await expect(first).rejects.toThrow('refused');
    expect(allowedOf(5)).toEqual([]);
    await answerAll();
    expect(allowedOf(5)).toEqual([5]);
  });

  test('a request answered at once locks nothing', () => {
    const answeringAtOnce = lockedDirectories.track({ lookup: () => emptyEntry });
    expect(answeringAtOnce.lookup?.(5, name, anyRequest)).toBe(emptyEntry);
    expect(allowedOf(5)).toEqual([5]);
  });

  test('a slow server locks all directories', async () => {
    void operations.lookup?.(5, name, anyRequest);
    clock.advance(101);
    expect(allowedOf(6)).toEqual([]);
    await answerAll();
    expect(allowedOf(6)).toEqual([6]);
  });

  test('a slow setattr of a file locks nothing', () => {
    void operations.setattr?.(9, {}, anyRequest);
    clock.advance(10_000);
    expect(allowedOf(6)).toEqual([6]);
  });

  test('a directory that is always busy is released after a while', async () => {
    for (let ms = 0; ms < 1_000; ms += 50) {
      void operations.lookup?.(5, name, anyRequest);
      expect(allowedOf(5)).toEqual([]);
      clock.advance(50);
      const earlierAnswers = pendingAnswers.splice(0);
      void operations.lookup?.(5, name, anyRequest);
      for (const { resolve } of earlierAnswers) resolve(emptyEntry as never);
      await turn();
    }
    expect(allowedOf(5)).toEqual([5]);
  });

  describe('the dentry shrinker', () => {
    const droppedNames: string[] = [];
    const seenNodes = new Map<number, SeenNode>();
    const losses = new Map<number, 'reported' | 'unreported'>();

    const shrink = (count: number): void =>
      createDentryShrinker({
        nodes: {
          get: (id) => ({ id, generation: 0, handle: Buffer.alloc(0), opens: id === 13 ? 1 : 0 }),
          dataLoss: (id) => (losses.has(id) ? 'ENOSPC' : undefined),
          isLossReported: (id) => losses.get(id) === 'reported',
        },
        server: {
          leastRecentlySeen: (most) => [...seenNodes.values()].slice(0, most),
          recordSeen: (id, parent, key) => {
            seenNodes.delete(id);
            seenNodes.set(id, { id, parent, key, isDirectory: id === 12 });
          },
          forget: (id) => void seenNodes.delete(id),
        },
        notifyFromThread: async (bytes) => {
          const [key = ''] = /[a-z]+/.exec(bytes.toString('latin1')) ?? [];
          droppedNames.push(key);
          seenNodes.delete(10 + 'abcdefgh'.indexOf(key));
          await turn();
        },
        lockedDirectories,
      })(count);
    const runPendingWork = async (): Promise<void> => {
      for (let i = 0; i < 50; i++) await turn();
    };

    beforeEach(() => {
      droppedNames.splice(0);
      seenNodes.clear();
      losses.clear();
      // Names a to h, alternating between two directories; c is a directory, and d is open.
      for (const [i, key] of [...'abcdefgh'].entries())
        seenNodes.set(10 + i, { id: 10 + i, parent: 5 + (i % 2), key, isDirectory: key === 'c' });
    });

    test('drops the least recently seen unused dentries', async () => {
      shrink(3);
      await runPendingWork();
      expect(droppedNames).toEqual(['a', 'b', 'e']);
    });

    test('keeps nodes with an unreported data loss', async () => {
      losses.set(10, 'unreported').set(11, 'reported');
      shrink(3);
      await runPendingWork();
      expect(droppedNames).toEqual(['b', 'e', 'f']);
    });

    test('skips dentries in locked directories and drops them when the requests are answered', async () => {
      void operations.lookup?.(5, name, anyRequest);
      shrink(6);
      await runPendingWork();
      expect(droppedNames).toEqual(['b', 'f', 'h']);
      await answerAll();
      await runPendingWork();
      expect(droppedNames.toSorted()).toEqual(['a', 'b', 'e', 'f', 'g', 'h']);
    });

    test('ends when nothing can be dropped', async () => {
      shrink(1_000);
      await runPendingWork();
      expect([...seenNodes.values()].map(({ key }) => key).toSorted()).toEqual(['c', 'd']);
      seenNodes.clear();
      shrink(5);
      await runPendingWork();
      expect(droppedNames).toHaveLength(6);
    });
  });
});
