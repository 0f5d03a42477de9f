import type { Clock } from '#base/clock.ts';
import { createCollector, type Estate, holdSockets } from './estate.ts';
import type { MessageOf } from './protocol.ts';
import { ProtocolError } from './protocol.ts';
import type { About, Child } from './worker.ts';

/** A data path that serves, had another keeper, and has given everything to this one. */
export interface Arrival {
  readonly estate: Estate;
  readonly serving: { readonly child: Child; readonly about: About };
  /** It is gone again; what it gave is still there. */
  readonly isLost: boolean;
  welcome(): void;
  /** It goes on serving, and tries elsewhere or again. */
  refuse(reason: string): void;
}

interface ArrivalOptions {
  readonly child: Child;
  readonly about: About;
  readonly clock: Clock;
  readonly offered: (arrival: Arrival) => void;
}

const accepts = ['everything', 'add', 'holding', 'letGo', 'ended', 'ready', 'report'] as const;
const wholeMs = 5_000;

/** Until it is handed on to a supervisor. */
export function receiveDataPath({ child, about, clock, offered }: ArrivalOptions): void {
  const { line } = child;
  const collector = createCollector();
  const late = clock.after(wholeMs, () => line.close());
  let estate: Estate | undefined;
  let isLost = false;

  function heard(message: MessageOf<(typeof accepts)[number]>, descriptors: number[]): void {
    if (message.kind === 'ready' || message.kind === 'report') return;
    if (estate !== undefined && message.kind === 'ended') over(estate, message.mount);
    else if (estate !== undefined) update(estate, message, descriptors);
    else if (message.kind === 'letGo' || message.kind === 'ended')
      throw new ProtocolError(`something is over (${message.kind}) that never came`);
    else {
      estate = collector.take(message, descriptors);
      if (estate !== undefined) offer(estate);
    }
  }

  /** Every keeper is told so, also the one before: which of the two hears it in charge is not known, so each has it removed. */
  function over(whole: Estate, mount: string): void {
    if (whole.dropMount(mount)) line.send({ kind: 'remove', mount });
  }

  function offer(whole: Estate): void {
    late[Symbol.dispose]();
    offered({
      estate: whole,
      serving: { child, about },
      get isLost() {
        return isLost;
      },
      welcome: () => line.send({ kind: 'welcome' }),
      refuse: (reason) => {
        line.send({ kind: 'refused', reason });
        line.close();
        child.forget();
        whole[Symbol.dispose]();
      },
    });
  }

  line.handle({
    accepts,
    message: heard,
    closed: () => {
      isLost = true;
      late[Symbol.dispose]();
      collector[Symbol.dispose]();
      if (estate === undefined) child.forget();
    },
  });
}

function update(estate: Estate, message: MessageOf<(typeof accepts)[number]>, descriptors: number[]): void {
  if (message.kind === 'holding') holdSockets(estate, message, descriptors);
  else if (message.kind === 'letGo') estate.letGo(message.socket);
  else throw new ProtocolError(`a message (${message.kind}) came after everything`);
}
