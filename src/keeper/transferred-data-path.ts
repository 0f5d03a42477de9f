import type { Clock } from '#base/clock.ts';
import { createCollector, type HeldDescriptors, holdSockets } from './held-descriptors.ts';
import type { MessageOf } from './protocol.ts';
import { ProtocolError } from './protocol.ts';
import type { ProcessHandle, ProcessInfo } from './worker.ts';

/** A serving data path that had another keeper and has transferred everything to this one. */
export interface TransferredDataPath {
  readonly held: HeldDescriptors;
  readonly serving: { readonly child: ProcessHandle; readonly info: ProcessInfo };
  /** The data path is gone again. Its descriptors are still held here. */
  readonly isLost: boolean;
  accept(): void;
  /** The data path keeps serving and retries, here or at another keeper. */
  refuse(reason: string): void;
}

interface TransferOptions {
  readonly child: ProcessHandle;
  readonly info: ProcessInfo;
  readonly clock: Clock;
  readonly offered: (transferred: TransferredDataPath) => void;
}

const accepts = ['everything', 'add', 'holding', 'letGo', 'ended', 'ready', 'report'] as const;
const transferTimeoutMs = 5_000;

/** Handles the data path until a supervisor takes it over. */
export function receiveTransfer({ child, info, clock, offered }: TransferOptions): void {
  const { connection } = child;
  const collector = createCollector();
  const transferTimer = clock.after(transferTimeoutMs, () => connection.close());
  let held: HeldDescriptors | undefined;
  let isLost = false;

  function handleMessage(message: MessageOf<(typeof accepts)[number]>, descriptors: number[]): void {
    if (message.kind === 'ready' || message.kind === 'report') return;
    if (held !== undefined && message.kind === 'ended') endMount(held, message.mount);
    else if (held !== undefined) applyChange(held, message, descriptors);
    else if (message.kind === 'letGo' || message.kind === 'ended')
      throw new ProtocolError(`a message (${message.kind}) came before the transfer was complete`);
    else {
      held = collector.take(message, descriptors);
      if (held !== undefined) offer(held);
    }
  }

  /**
   * The data path reports this to every keeper, also the previous one. Either may be in charge, so each tells it to
   * remove the mount.
   */
  function endMount(complete: HeldDescriptors, mount: string): void {
    if (complete.dropMount(mount)) connection.send({ kind: 'remove', mount });
  }

  function offer(complete: HeldDescriptors): void {
    transferTimer[Symbol.dispose]();
    offered({
      held: complete,
      serving: { child, info },
      get isLost() {
        return isLost;
      },
      accept: () => connection.send({ kind: 'welcome' }),
      refuse: (reason) => {
        connection.send({ kind: 'refused', reason });
        connection.close();
        child.forget();
        complete[Symbol.dispose]();
      },
    });
  }

  connection.handle({
    accepts,
    message: handleMessage,
    closed: () => {
      isLost = true;
      transferTimer[Symbol.dispose]();
      collector[Symbol.dispose]();
      if (held === undefined) child.forget();
    },
  });
}

function applyChange(held: HeldDescriptors, message: MessageOf<(typeof accepts)[number]>, descriptors: number[]): void {
  if (message.kind === 'holding') holdSockets(held, message, descriptors);
  else if (message.kind === 'letGo') held.dropSocket(message.socket);
  else throw new ProtocolError(`a message (${message.kind}) came after a complete transfer`);
}
