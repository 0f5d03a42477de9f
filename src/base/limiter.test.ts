import { expect, test } from 'vitest';
import { createLimiter } from './limiter.ts';

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Work that starts when it gets a slot, and that the test ends. */
function controlledLimiter(limit: number) {
  const limiter = createLimiter(limit);
  const startedNames: string[] = [];
  const endByName = new Map<string, () => void>();
  const run = (name: string, signal?: AbortSignal): Promise<string> =>
    limiter.run(async () => {
      startedNames.push(name);
      await new Promise<void>((resolve) => endByName.set(name, resolve));
      return name;
    }, signal);
  return { startedNames, run, end: (name: string) => endByName.get(name)?.() };
}

test('runs up to the limit at once, and the rest in FIFO order', async () => {
  const { startedNames, run, end } = controlledLimiter(2);
  const all = ['a', 'b', 'c', 'd'].map((name) => run(name));
  await nextTurn();
  expect(startedNames).toEqual(['a', 'b']);
  end('b');
  await nextTurn();
  expect(startedNames).toEqual(['a', 'b', 'c']);
  end('a');
  await nextTurn();
  for (const name of ['c', 'd']) end(name);
  expect(await Promise.all(all)).toEqual(['a', 'b', 'c', 'd']);
});

test('a caller that gives up leaves the queue without occupying a slot', async () => {
  const { startedNames, run, end } = controlledLimiter(1);
  const controller = new AbortController();
  const [first, second, third] = [run('a'), run('b', controller.signal), run('c')];
  await nextTurn();
  controller.abort(new Error('no longer'));
  await expect(second).rejects.toThrow('no longer');
  await expect(run('d', controller.signal)).rejects.toThrow('no longer');
  end('a');
  await nextTurn();
  end('c');
  expect(await Promise.all([first, third])).toEqual(['a', 'c']);
  expect(startedNames).toEqual(['a', 'c']);
});
