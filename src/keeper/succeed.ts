import type { Log } from '#base/log.ts';
import type { Arrival } from './arrival.ts';
import { createCollector, type Estate, type EstateMessage } from './estate.ts';
import type { Line } from './line.ts';
import type { MessageOf } from './protocol.ts';
import type { About } from './worker.ts';

/** The keeper that is in charge until now. */
export interface Predecessor {
  readonly line: Line;
  /** Makes sure that it is gone. False: it lives, where this process cannot end it. */
  end(): Promise<boolean>;
  /** Where this keeper can be reached meanwhile. */
  readonly temporaryPath: string;
  readonly self: About;
}

interface SucceedPorts {
  readonly log: Log;
  readonly takeCharge: (estate: Estate, wasServed: boolean, serving: Arrival['serving'] | undefined) => void;
  /** The predecessor is gone and had given nothing: a data path may still come. */
  readonly settle: () => void;
  readonly refused: () => void;
  /** The predecessor does not hand over, and cannot be ended. */
  readonly outOfReach: () => void;
}

/** The new keeper's side of a handover. */
export function succeed(
  { line, end, temporaryPath, self }: Predecessor,
  { log, takeCharge, settle, refused, outOfReach }: SucceedPorts,
): { readonly isOver: boolean; offered(arrival: Arrival): void } {
  const collector = createCollector();
  let pending: { readonly estate: Estate; readonly arrival: Arrival | undefined } | undefined;
  let isOver = false;

  function collected(message: EstateMessage, descriptors: number[]): void {
    const estate = collector.take(message, descriptors);
    if (estate !== undefined) take({ estate, arrival: undefined });
  }

  function take(what: NonNullable<typeof pending>): void {
    pending = what;
    line.send({ kind: 'taking' });
  }

  async function accept({ estate, arrival }: NonNullable<typeof pending>): Promise<void> {
    if (arrival === undefined || arrival.isLost) {
      await arrival?.serving.child.end();
      return takeCharge(estate, true, undefined);
    }
    arrival.welcome();
    takeCharge(estate, true, arrival.serving);
  }

  function decided(message: MessageOf<'yours' | 'failed'>): void {
    if (isOver) return;
    isOver = true;
    if (message.kind === 'yours' && pending !== undefined) return void accept(pending);
    log.warn('the keeper before does not hand over', { why: message.kind === 'failed' ? message.text : '' });
    giveBack();
    refused();
  }

  function giveBack(): void {
    if (pending?.arrival !== undefined) pending.arrival.refuse('not handed over');
    else pending?.estate[Symbol.dispose]();
  }

  async function deserted(why: string): Promise<void> {
    collector[Symbol.dispose]();
    if (isOver) return;
    isOver = true;
    log.warn('the keeper before is gone', { why });
    // It may live, and only one can be in charge.
    if (!(await end())) {
      log.error('the keeper before lives where it cannot be ended from here: restart its container');
      giveBack();
      outOfReach();
    } else if (pending === undefined) settle();
    else await accept(pending);
  }

  line.handle({
    accepts: ['everything', 'add', 'holding', 'yours', 'failed'],
    message: (message, descriptors) =>
      message.kind === 'yours' || message.kind === 'failed' ? decided(message) : collected(message, descriptors),
    closed: (why) => void deserted(why),
  });
  line.send({ kind: 'hello', role: 'keeper', ...self });
  line.send({ kind: 'handover', path: temporaryPath });

  return {
    get isOver() {
      return isOver;
    },
    offered: (arrival) => {
      if (pending === undefined) take({ estate: arrival.estate, arrival });
      else arrival.refuse('occupied');
    },
  };
}
