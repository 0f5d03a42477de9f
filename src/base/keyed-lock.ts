import { unlessAborted } from './aborted.ts';
/** One holder per key at a time, in FIFO order. */
export interface KeyedLock {
  /** Waits until all keys are free, then holds them. Acquires them in sorted order, so two callers cannot deadlock. */
  hold(keys: readonly string[], signal: AbortSignal): Promise<Disposable>;
  isHeld(key: string): boolean;
  readonly size: number;
}

export function createKeyedLock(): KeyedLock {
  const tails = new Map<string, Promise<void>>();

  async function holdOne(key: string, signal: AbortSignal): Promise<Disposable> {
    signal.throwIfAborted();
    const predecessor = tails.get(key);
    const { promise: released, resolve: release } = Promise.withResolvers<void>();
    const tail = predecessor === undefined ? released : predecessor.then(() => released);
    tails.set(key, tail);
    const held = {
      [Symbol.dispose]: () => {
        release();
        if (tails.get(key) === tail) tails.delete(key);
      },
    };
    if (predecessor === undefined) return held;
    try {
      await unlessAborted(predecessor, signal);
      return held;
    } catch (cause) {
      // Keep the place in the queue until the predecessor is done, or the successor would overtake it.
      void predecessor.then(() => held[Symbol.dispose]());
      throw cause;
    }
  }

  return {
    hold: async (keys, signal) => {
      using stack = new DisposableStack();
      for (const key of [...new Set(keys)].sort()) stack.use(await holdOne(key, signal));
      return stack.move();
    },
    isHeld: (key) => tails.has(key),
    get size() {
      return tails.size;
    },
  };
}
