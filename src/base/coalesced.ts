/**
 * Callers that ask while a run is under way share the next one: the run under way may have begun before their change
 * was made, so it proves nothing to them; the next one begins after all of them asked, so it covers them all.
 */
export function coalesced(work: () => Promise<void>): () => Promise<void> {
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
