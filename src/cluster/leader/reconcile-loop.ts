import { createBackOff } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { WatchedObject } from '#wire/kube/watched-object.ts';
import { sleepOrWake } from '../sleep-or-wake.ts';

export interface ReconcileLoopOptions {
  /** The name of the object in the log. */
  readonly objectName: string;
  readonly clock: Clock;
  /** The loop waits until all of them are synced, and runs again when one of them changes. */
  readonly objects: readonly WatchedObject<unknown>[];
  /** Idempotent. Returns the time until the next run. */
  readonly reconcile: (scope: Scope) => Promise<number>;
  readonly random?: () => number;
}

/** Runs until the signal aborts. Retries failures with backoff, or when an object changes. */
export async function runReconcileLoop(options: ReconcileLoopOptions, scope: Scope): Promise<void> {
  const { objectName, clock, objects, reconcile, random = Math.random } = options;
  const { signal, log } = scope;
  const backOff = createBackOff({ firstMs: 250, maxMs: 15_000, random });
  let wake = Promise.withResolvers<void>();
  using subscriptions = new DisposableStack();
  for (const object of objects) subscriptions.use(object.onChange(() => wake.resolve()));
  const watches = objects.map((object) => object.run(scope));
  while (!signal.aborted) {
    wake = Promise.withResolvers<void>();
    const waitMs = objects.every(({ synced }) => synced) ? await attempt() : Number.POSITIVE_INFINITY;
    await sleepOrWake(clock, waitMs, wake.promise, signal);
  }
  await Promise.all(watches);

  async function attempt(): Promise<number> {
    try {
      const ms = await reconcile(scope);
      backOff.reset();
      return ms;
    } catch (error) {
      if (!signal.aborted) log.warn('reconcile failed, retrying', { what: objectName, error });
      return backOff.next();
    }
  }
}
