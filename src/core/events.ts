import type { Clock } from '#base/clock.ts';

export interface Event {
  readonly seq: number;
  readonly type: string;
  readonly at: number;
  readonly subject: string;
  /** The store that the event concerns. Tokens that are limited to stores see only the events of these stores. */
  readonly store: string | undefined;
  readonly data: unknown;
}

export interface Events {
  /** Changes at every start: sequence numbers of an earlier server process are invalid. */
  readonly epoch: string;
  readonly lastSeq: number;
  publish(type: string, subject: string, store: string | undefined, data: unknown): void;
  /** Events after `seq`, oldest first. Undefined: some were already dropped, so the reader must start over. */
  eventsAfter(seq: number): readonly Event[] | undefined;
  subscribe(listener: (event: Event) => void): Disposable;
}

/** A ring buffer of the newest events: readers can resume after a short disconnect, and memory stays bounded. */
export function createEvents(epoch: string, clock: Clock, capacity = 2048): Events {
  const ring: Event[] = [];
  const listeners = new Set<(event: Event) => void>();
  let lastSeq = 0;
  return {
    epoch,
    get lastSeq() {
      return lastSeq;
    },
    publish: (type, subject, store, data) => {
      const event: Event = { seq: ++lastSeq, type, at: clock.now(), subject, store, data };
      ring[event.seq % capacity] = event;
      for (const listener of listeners) listener(event);
    },
    eventsAfter: (seq) => {
      if (seq > lastSeq || seq < 0 || lastSeq - seq > capacity) return undefined;
      const missed: Event[] = [];
      for (let next = seq + 1; next <= lastSeq; next++) {
        const event = ring[next % capacity];
        if (event?.seq !== next) return undefined;
        missed.push(event);
      }
      return missed;
    },
    subscribe: (listener) => {
      listeners.add(listener);
      return { [Symbol.dispose]: () => listeners.delete(listener) };
    },
  };
}
