import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Supervisor } from './supervisor.ts';

interface ForeignDataPathOptions {
  readonly program: string;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
  /** This supervisor is still in charge. */
  readonly isCurrent: () => boolean;
}

const retryMs = 5_000;

/** Replaces a data path that another keeper started: it would end with that keeper's container. */
export async function replaceForeignDataPath(
  supervisor: Supervisor,
  { program, clock, log, signal, isCurrent }: ForeignDataPathOptions,
): Promise<void> {
  while (isCurrent() && supervisor.state.isBorrowed === true && !signal.aborted) {
    await supervisor.upgrade(program, signal).catch(async (cause: unknown) => {
      log.warn('failed to replace the data path of the previous keeper', { cause: String(cause) });
      await clock.sleep(retryMs, signal).catch(() => undefined);
    });
  }
}
