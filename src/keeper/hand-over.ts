import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Connection } from './connection.ts';
import { type HeldDescriptors, sendHeldDescriptors } from './held-descriptors.ts';
import type { Supervisor } from './supervisor.ts';

interface ActiveKeeper {
  readonly supervisor: Supervisor;
  readonly held: HeldDescriptors;
}

interface HandOverPorts {
  readonly clock: Clock;
  readonly log: Log;
  /** Undefined: a handover is not possible now. */
  readonly activeKeeper: () => ActiveKeeper | undefined;
  readonly onBegin: () => void;
  readonly onEnd: (isHandedOver: boolean) => void;
}

export interface HandOver {
  /** Call after every change: if another data path serves by now, the keeper tells that one to move instead. */
  afterChange(): void;
}

const handoverTimeoutMs = 15_000;

/**
 * The old keeper's side. It is in charge until it sends `yours`, and never afterwards: if a data path dies meanwhile,
 * exactly one of the two keepers starts its successor.
 */
export function handOver(
  connection: Connection,
  { clock, log, activeKeeper, onBegin, onEnd }: HandOverPorts,
): HandOver {
  let current: { readonly supervisor: Supervisor; readonly path: string; isCurrent: () => boolean } | undefined;
  const cleanup = new DisposableStack();

  function begin(path: string): void {
    const found = current === undefined ? activeKeeper() : undefined;
    const isCurrent = found?.supervisor.isEmpty === true ? sendEverything(found) : found?.supervisor.move(path);
    if (found === undefined || isCurrent === undefined) {
      refuse();
      return;
    }
    const { supervisor, held } = found;
    log.info('handing over to another keeper', { mounts: held.mounts.size });
    current = { supervisor, path, isCurrent };
    cleanup.use(clock.after(handoverTimeoutMs, cancel));
    onBegin();
  }

  /** For the case that no live data path could do the transfer. */
  function sendEverything({ supervisor, held }: ActiveKeeper): () => boolean {
    cleanup.use(supervisor.freeze());
    sendHeldDescriptors(connection, held, 'everything');
    return () => true;
  }

  function finish(): void {
    if (current?.isCurrent() !== true) {
      cancel();
      return;
    }
    current.supervisor.release();
    // From here on the other keeper is in charge, even if it dies.
    current = undefined;
    connection.send({ kind: 'yours' });
    log.info('handed over: another keeper is in charge');
    onEnd(true);
  }

  const refuse = (): void =>
    connection.send({ kind: 'failed', ask: 0, reason: 'busy', text: 'the keeper cannot hand over now' });

  function cancel(): void {
    if (current === undefined) return;
    current = undefined;
    log.warn('the handover failed; this keeper stays in charge');
    refuse();
    onEnd(false);
    cleanup[Symbol.dispose]();
    connection.close();
  }

  connection.handle({
    accepts: ['handover', 'taking'],
    message: (message) => (message.kind === 'handover' ? begin(message.path) : finish()),
    closed: cancel,
  });
  return {
    afterChange: () => {
      if (current?.isCurrent() === false)
        current.isCurrent = current.supervisor.move(current.path) ?? current.isCurrent;
    },
  };
}
