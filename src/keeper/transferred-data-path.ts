import type { Clock } from '#base/clock.ts';
import { createCollector, type HeldDescriptors, holdSockets } from './held-descriptors.ts';
import type { MessageOf } from './protocol.ts';
import { ProtocolError } from './protocol.ts';
import type { ProcessHandle, ProcessInfo } from './worker.ts';

/** A data path that serves, had another keeper, and has given everything to this one. */
export interface TransferredDataPath {
  readonly held: HeldDescriptors;
  readonly serving: { readonly child: ProcessHandle; readonly about: ProcessInfo };
  /** It is gone again; what it gave is still there. */
  readonly isLost: boolean;
  welcome(): void;
  /** It goes on serving, and tries elsewhere or again. */
  refuse(reason: string): void;
}

interface TransferOptions {
  readonly child: ProcessHandle;
  readonly about: ProcessInfo;
  readonly clock: Clock;
  readonly offered: (transferred: TransferredDataPath) => void;
}

const accepts = ['everything', 'add', 'holding', 'letGo', 'ended', 'ready', 'report'] as const;
const transferTimeoutMs = 5_000;

/** Until it is handed on to a supervisor. */
export function receiveTransfer({ child, about, clock, offered }: TransferOptions): void {
  const { connection } = child;
  const collector = createCollector();
  const late = clock.after(transferTimeoutMs, () => connection.close());
  let held: HeldDescriptors | undefined;
  let isLost = false;

  function heard(message: MessageOf<(typeof accepts)[number]>, descriptors: number[]): void {
    if (message.kind === 'ready' || message.kind === 'report') return;
    if (held !== undefined && message.kind === 'ended') endMount(held, message.mount);
    else if (held !== undefined) update(held, message, descriptors);
    else if (message.kind === 'letGo' || message.kind === 'ended')
      throw new ProtocolError(`something is over (${message.kind}) that never came`);
    else {
      held = collector.take(message, descriptors);
      if (held !== undefined) offer(held);
    }
  }

  /** Every keeper is told so, also the one before: which of the two hears it in charge is not known, so each has it removed. */
  function endMount(whole: HeldDescriptors, mount: string): void {
    if (whole.dropMount(mount)) connection.send({ kind: 'remove', mount });
  }

  function offer(whole: HeldDescriptors): void {
    late[Symbol.dispose]();
    offered({
      held: whole,
      serving: { child, about },
      get isLost() {
        return isLost;
      },
      welcome: () => connection.send({ kind: 'welcome' }),
      refuse: (reason) => {
        connection.send({ kind: 'refused', reason });
        connection.close();
        child.forget();
        whole[Symbol.dispose]();
      },
    });
  }

  connection.handle({
    accepts,
    message: heard,
    closed: () => {
      isLost = true;
      late[Symbol.dispose]();
      collector[Symbol.dispose]();
      if (held === undefined) child.forget();
    },
  });
}

function update(held: HeldDescriptors, message: MessageOf<(typeof accepts)[number]>, descriptors: number[]): void {
  if (message.kind === 'holding') holdSockets(held, message, descriptors);
  else if (message.kind === 'letGo') held.dropSocket(message.socket);
  else throw new ProtocolError(`a message (${message.kind}) came after everything`);
}
