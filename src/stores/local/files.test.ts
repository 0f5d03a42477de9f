import { describe, expect, test } from 'vitest';
import { coalesced, eachBounded } from './files.ts';

/** Work whose ends the test decides. */
function controlled(): { readonly work: () => Promise<void>; readonly runs: PromiseWithResolvers<void>[] } {
  const runs: PromiseWithResolvers<void>[] = [];
  const work = (): Promise<void> => {
    const run = Promise.withResolvers<void>();
    runs.push(run);
    return run.promise;
  };
  return { work, runs };
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('coalesced work', () => {
  test('those who ask during a run share the next one, which begins after they asked', async () => {
    const { work, runs } = controlled();
    const ask = coalesced(work);
    const ended: string[] = [];
    const asked = ['a', 'b', 'c'].map((who) => ask().then(() => ended.push(who)));
    expect(runs.length).toBe(1);
    runs[0]?.resolve();
    await turn();
    expect(ended).toEqual(['a']);
    expect(runs.length).toBe(2);
    asked.push(ask().then(() => ended.push('d')));
    runs[1]?.resolve();
    await turn();
    expect(ended).toEqual(['a', 'b', 'c']);
    expect(runs.length).toBe(3);
    runs[2]?.resolve();
    await Promise.all(asked);
    expect(ended).toEqual(['a', 'b', 'c', 'd']);
  });

  test('a failure reaches those who share the run, and no others', async () => {
    const { work, runs } = controlled();
    const ask = coalesced(work);
    const results = Promise.allSettled([ask(), ask()]);
    runs[0]?.reject(new Error('disk'));
    await turn();
    runs[1]?.resolve();
    expect((await results).map(({ status }) => status)).toEqual(['rejected', 'fulfilled']);
    const later = ask();
    runs[2]?.resolve();
    await later;
  });
});

describe('bounded work', () => {
  test('never has more in flight than allowed, and does everything', async () => {
    let inFlight = 0;
    let most = 0;
    const done: number[] = [];
    await eachBounded([1, 2, 3, 4, 5, 6, 7], 3, async (item) => {
      most = Math.max(most, ++inFlight);
      await turn();
      inFlight--;
      done.push(item);
    });
    expect(most).toBe(3);
    expect(done.toSorted()).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  test('throws the first failure when the others are done, and begins no more', async () => {
    const begun: number[] = [];
    const work = eachBounded([1, 2, 3, 4, 5, 6], 2, async (item) => {
      begun.push(item);
      await turn();
      if (item === 1) throw new Error('one');
    });
    await expect(work).rejects.toThrow('one');
    expect(begun.length).toBeLessThan(6);
  });
});
