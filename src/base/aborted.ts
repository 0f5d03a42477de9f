/** Until the signal ends it. */
export async function aborted(signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  using _ = onAbort(signal, resolve);
  await promise;
}

/** Calls `stop` when the signal is aborted, at once if it is already, unless disposed of before. */
export function onAbort(signal: AbortSignal, stop: () => void): Disposable {
  if (signal.aborted) stop();
  else signal.addEventListener('abort', stop, { once: true });
  return { [Symbol.dispose]: () => signal.removeEventListener('abort', stop) };
}

/** Waits for the work, but not longer than its signal: then throws the signal's reason. The work itself goes on. */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: stopped, reject } = Promise.withResolvers<never>();
  using _ = onAbort(signal, () => reject(signal.reason));
  // The signal first: an aborted one counts more than work that has just ended.
  return await Promise.race([stopped, work]);
}
