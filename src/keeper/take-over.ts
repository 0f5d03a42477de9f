import type { Log } from '#base/log.ts';
import type { Connection } from './connection.ts';
import { createCollector, type HeldDescriptors, type HeldDescriptorsMessage } from './held-descriptors.ts';
import type { MessageOf } from './protocol.ts';
import type { TransferredDataPath } from './transferred-data-path.ts';
import type { ProcessInfo } from './worker.ts';

/** The keeper that is in charge so far. */
export interface Predecessor {
  readonly connection: Connection;
  /** Terminates it. False: it is alive, where this process cannot kill it. */
  end(): Promise<boolean>;
  /** This keeper's socket until it is in charge. */
  readonly temporaryPath: string;
  readonly self: ProcessInfo;
}

interface TakeOverPorts {
  readonly log: Log;
  readonly takeCharge: (
    held: HeldDescriptors,
    wasServed: boolean,
    serving: TransferredDataPath['serving'] | undefined,
  ) => void;
  /** The predecessor is gone and has transferred nothing: a data path may still come. */
  readonly waitForDataPath: () => void;
  readonly refused: () => void;
  /** The predecessor does not hand over and cannot be killed. */
  readonly outOfReach: () => void;
}

/** The new keeper's side of a handover. */
export function takeOver(
  { connection, end, temporaryPath, self }: Predecessor,
  { log, takeCharge, waitForDataPath, refused, outOfReach }: TakeOverPorts,
): { readonly isOver: boolean; handleTransfer(transferred: TransferredDataPath): void } {
  const collector = createCollector();
  let pending: { readonly held: HeldDescriptors; readonly transferred: TransferredDataPath | undefined } | undefined;
  let isOver = false;

  function collect(message: HeldDescriptorsMessage, descriptors: number[]): void {
    const held = collector.take(message, descriptors);
    if (held !== undefined) propose({ held, transferred: undefined });
  }

  function propose(proposal: NonNullable<typeof pending>): void {
    pending = proposal;
    connection.send({ kind: 'taking' });
  }

  async function accept({ held, transferred }: NonNullable<typeof pending>): Promise<void> {
    if (transferred === undefined || transferred.isLost) {
      await transferred?.serving.child.end();
      return takeCharge(held, true, undefined);
    }
    transferred.accept();
    takeCharge(held, true, transferred.serving);
  }

  function handleDecision(message: MessageOf<'yours' | 'failed'>): void {
    if (isOver) return;
    isOver = true;
    if (message.kind === 'yours' && pending !== undefined) return void accept(pending);
    log.warn('the previous keeper does not hand over', { why: message.kind === 'failed' ? message.text : '' });
    releasePending();
    refused();
  }

  function releasePending(): void {
    if (pending?.transferred !== undefined) pending.transferred.refuse('not handed over');
    else pending?.held[Symbol.dispose]();
  }

  async function handleDisconnect(why: string): Promise<void> {
    collector[Symbol.dispose]();
    if (isOver) return;
    isOver = true;
    log.warn('the previous keeper is gone', { why });
    // It may be alive, and only one keeper may be in charge.
    if (!(await end())) {
      log.error('the previous keeper is alive and cannot be killed from here: restart its container');
      releasePending();
      outOfReach();
    } else if (pending === undefined) waitForDataPath();
    else await accept(pending);
  }

  connection.handle({
    accepts: ['everything', 'add', 'holding', 'yours', 'failed'],
    message: (message, descriptors) =>
      message.kind === 'yours' || message.kind === 'failed' ? handleDecision(message) : collect(message, descriptors),
    closed: (why) => void handleDisconnect(why),
  });
  connection.send({ kind: 'hello', role: 'keeper', ...self });
  connection.send({ kind: 'handover', path: temporaryPath });

  return {
    get isOver() {
      return isOver;
    },
    handleTransfer: (transferred) => {
      if (pending === undefined) propose({ held: transferred.held, transferred });
      else transferred.refuse('occupied');
    },
  };
}
