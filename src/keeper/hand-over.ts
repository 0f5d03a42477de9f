import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Connection } from './connection.ts';
import { type HeldDescriptors, sendHeldDescriptors } from './held-descriptors.ts';
import type { Supervisor } from './supervisor.ts';

interface Charge {
  readonly supervisor: Supervisor;
  readonly held: HeldDescriptors;
}

interface HandOverPorts {
  readonly clock: Clock;
  readonly log: Log;
  /** Undefined: nothing can be handed over now. */
  readonly charge: () => Charge | undefined;
  readonly begun: () => void;
  readonly ended: (given: boolean) => void;
}

export interface HandOver {
  /** Something changed: perhaps another data path serves, which is then told instead. */
  look(): void;
}

const longestMs = 15_000;

/**
 * The old keeper's side. It is in charge until it says `yours`, and never afterwards: a data path that dies meanwhile gets
 * its successor from exactly one of the two.
 */
export function handOver(connection: Connection, { clock, log, charge, begun, ended }: HandOverPorts): HandOver {
  let current: { readonly supervisor: Supervisor; readonly path: string; isStillSo: () => boolean } | undefined;
  const clean = new DisposableStack();

  function begin(path: string): void {
    const found = current === undefined ? charge() : undefined;
    const isStillSo = found?.supervisor.isEmpty === true ? give(found) : found?.supervisor.move(path);
    if (found === undefined || isStillSo === undefined) {
      refuse();
      return;
    }
    const { supervisor, held } = found;
    log.info('another keeper asks for everything', { mounts: held.mounts.size });
    current = { supervisor, path, isStillSo };
    clean.use(clock.after(longestMs, cancel));
    begun();
  }

  /** Where no data path lives that could. */
  function give({ supervisor, held }: Charge): () => boolean {
    clean.use(supervisor.freeze());
    sendHeldDescriptors(connection, held, 'everything');
    return () => true;
  }

  function finish(): void {
    if (current?.isStillSo() !== true) {
      cancel();
      return;
    }
    current.supervisor.release();
    // Whatever becomes of the other one.
    current = undefined;
    connection.send({ kind: 'yours' });
    log.info('another keeper is in charge');
    ended(true);
  }

  const refuse = (): void =>
    connection.send({ kind: 'failed', ask: 0, reason: 'busy', text: 'the keeper cannot hand over now' });

  function cancel(): void {
    if (current === undefined) return;
    current = undefined;
    log.warn('everything stays with this keeper');
    refuse();
    ended(false);
    clean[Symbol.dispose]();
    connection.close();
  }

  connection.handle({
    accepts: ['handover', 'taking'],
    message: (message) => (message.kind === 'handover' ? begin(message.path) : finish()),
    closed: cancel,
  });
  return {
    look: () => {
      if (current?.isStillSo() === false)
        current.isStillSo = current.supervisor.move(current.path) ?? current.isStillSo;
    },
  };
}
