import { createBackOff } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Followed } from '#wire/kube/followed.ts';
import { sleepOrWake } from '../sleep-or-wake.ts';

export interface ReconcileLoopOptions {
  /** For the log. */
  readonly what: string;
  readonly clock: Clock;
  /** Each of them was seen before anything is done, and all is looked at again when one has changed. */
  readonly objects: readonly Followed<unknown>[];
  /** Puts right what is not as it should be, and does nothing where all is. Gives when to look again in any case. */
  readonly reconcile: (scope: Scope) => Promise<number>;
  readonly random?: () => number;
}

/** Until the signal ends it. What fails is tried again, later each time, or when something has changed. */
export async function runReconcileLoop(keeping: ReconcileLoopOptions, scope: Scope): Promise<void> {
  const { what, clock, objects, reconcile: pass, random = Math.random } = keeping;
  const { signal, log } = scope;
  const backOff = createBackOff({ firstMs: 250, mostMs: 15_000, random });
  let wake = Promise.withResolvers<void>();
  using listening = new DisposableStack();
  for (const object of objects) listening.use(object.on(() => wake.resolve()));
  const following = objects.map((object) => object.run(scope));
  while (!signal.aborted) {
    wake = Promise.withResolvers<void>();
    const waitMs = objects.every(({ synced }) => synced) ? await attempt() : Number.POSITIVE_INFINITY;
    await sleepOrWake(clock, waitMs, wake.promise, signal);
  }
  await Promise.all(following);

  async function attempt(): Promise<number> {
    try {
      const ms = await pass(scope);
      backOff.reset();
      return ms;
    } catch (error) {
      if (!signal.aborted) log.warn('reconcile failed, retrying', { what, error });
      return backOff.next();
    }
  }
}
