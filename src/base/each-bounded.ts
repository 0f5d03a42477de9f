/** Runs at most `limit` at a time. After a failure it starts no new items, and throws the failure when the running ones have ended. */
export async function eachBounded<T>(
  items: Iterable<T> | AsyncIterable<T>,
  limit: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const running = new Set<Promise<void>>();
  let failure: { readonly cause: unknown } | undefined;
  for await (const item of items) {
    const task: Promise<void> = work(item)
      .catch((cause: unknown) => {
        failure ??= { cause };
      })
      .finally(() => running.delete(task));
    running.add(task);
    if (running.size >= limit) await Promise.race(running);
    if (failure !== undefined) break;
  }
  await Promise.all(running);
  if (failure !== undefined) throw failure.cause;
}
