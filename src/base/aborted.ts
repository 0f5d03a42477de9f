/** Resolves when the signal is aborted. */
export async function aborted(signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  using _ = onAbort(signal, resolve);
  await promise;
}

/** Calls `stop` when the signal is aborted, at once if it already is, unless disposed of first. */
export function onAbort(signal: AbortSignal, stop: () => void): Disposable {
  if (signal.aborted) stop();
  else signal.addEventListener('abort', stop, { once: true });
  return { [Symbol.dispose]: () => signal.removeEventListener('abort', stop) };
}

/** Waits for the work until the signal is aborted, then returns. The work itself continues. */
export async function untilAborted(work: Promise<unknown>, signal: AbortSignal): Promise<void> {
  const { promise: stopped, resolve } = Promise.withResolvers<void>();
  using _ = onAbort(signal, resolve);
  await Promise.race([stopped, work]);
}

/** Waits for the work until the signal is aborted, then throws the signal's reason. The work itself continues. */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: stopped, reject } = Promise.withResolvers<never>();
  using _ = onAbort(signal, () => reject(signal.reason));
  // The signal comes first: if both are settled, the abort wins.
  return await Promise.race([stopped, work]);
}
