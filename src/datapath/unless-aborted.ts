/** Waits for the work until the signal aborts, then throws its reason. */
export async function unlessAborted<T>(what: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted();
  const { promise: stopped, reject } = Promise.withResolvers<never>();
  const stop = (): void => reject(signal.reason);
  signal.addEventListener('abort', stop, { once: true });
  try {
    return await Promise.race([what, stopped]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}
