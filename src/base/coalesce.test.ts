import { describe, expect, test } from 'vitest';
import { coalesce } from './coalesce.ts';

/** Work whose runs the test ends. */
function controlledWork(): { readonly work: () => Promise<void>; readonly runs: PromiseWithResolvers<void>[] } {
  const runs: PromiseWithResolvers<void>[] = [];
  const work = (): Promise<void> => {
    const run = Promise.withResolvers<void>();
    runs.push(run);
    return run.promise;
  };
  return { work, runs };
}

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('coalesce()', () => {
  test('lets calls that arrive during a run share the next run', async () => {
    const { work, runs } = controlledWork();
    const run = coalesce(work);
    const ended: string[] = [];
    const calls = ['a', 'b', 'c'].map((who) => run().then(() => ended.push(who)));
    expect(runs.length).toBe(1);
    runs[0]?.resolve();
    await nextTurn();
    expect(ended).toEqual(['a']);
    expect(runs.length).toBe(2);
    calls.push(run().then(() => ended.push('d')));
    runs[1]?.resolve();
    await nextTurn();
    expect(ended).toEqual(['a', 'b', 'c']);
    expect(runs.length).toBe(3);
    runs[2]?.resolve();
    await Promise.all(calls);
    expect(ended).toEqual(['a', 'b', 'c', 'd']);
  });

  test('reports a failure only to the callers that share the failed run', async () => {
    const { work, runs } = controlledWork();
    const run = coalesce(work);
    const results = Promise.allSettled([run(), run()]);
    runs[0]?.reject(new Error('disk'));
    await nextTurn();
    runs[1]?.resolve();
    expect((await results).map(({ status }) => status)).toEqual(['rejected', 'fulfilled']);
    const nextCall = run();
    runs[2]?.resolve();
    await nextCall;
  });
});
