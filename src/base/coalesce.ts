/**
 * Callers that arrive during a run share the next run. The current run may have read its input before their change, so it does not cover
 * them; the next one starts after all of them called, so it does.
 */
export function coalesce(work: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | undefined;
  let next: Promise<void> | undefined;
  const start = (): Promise<void> => {
    const run = work().finally(() => {
      if (running === run) running = undefined;
    });
    running = run;
    return run;
  };
  const startNext = (): Promise<void> => {
    next = undefined;
    return start();
  };
  return () => {
    if (running === undefined) return start();
    next ??= running.then(startNext, startNext);
    return next;
  };
}
