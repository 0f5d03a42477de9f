import { expect, test } from 'vitest';
import { createLimiter } from './limiter.ts';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Work that starts when it gets a slot, and ends when the test says so. */
function controlled(most: number) {
  const limiter = createLimiter(most);
  const begun: string[] = [];
  const ends = new Map<string, () => void>();
  const run = (name: string, signal?: AbortSignal): Promise<string> =>
    limiter.run(async () => {
      begun.push(name);
      await new Promise<void>((resolve) => ends.set(name, resolve));
      return name;
    }, signal);
  return { begun, run, end: (name: string) => ends.get(name)?.() };
}

test('runs up to the limit at once, and the rest in FIFO order', async () => {
  const { begun, run, end } = controlled(2);
  const all = ['a', 'b', 'c', 'd'].map((name) => run(name));
  await turn();
  expect(begun).toEqual(['a', 'b']);
  end('b');
  await turn();
  expect(begun).toEqual(['a', 'b', 'c']);
  end('a');
  await turn();
  for (const name of ['c', 'd']) end(name);
  expect(await Promise.all(all)).toEqual(['a', 'b', 'c', 'd']);
});

test('a caller that gives up leaves the queue without occupying a slot', async () => {
  const { begun, run, end } = controlled(1);
  const leaving = new AbortController();
  const [first, second, third] = [run('a'), run('b', leaving.signal), run('c')];
  await turn();
  leaving.abort(new Error('no longer'));
  await expect(second).rejects.toThrow('no longer');
  await expect(run('d', leaving.signal)).rejects.toThrow('no longer');
  end('a');
  await turn();
  end('c');
  expect(await Promise.all([first, third])).toEqual(['a', 'c']);
  expect(begun).toEqual(['a', 'c']);
});
