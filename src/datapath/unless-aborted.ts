/** Waits for it, or until the signal is aborted: then throws the reason. */
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
