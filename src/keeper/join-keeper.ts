import type { Clock } from '#base/clock.ts';
import { duplicate } from '#base/linux/socket-pair.ts';
import type { Log } from '#base/log.ts';
import { type Connection, createConnection } from './connection.ts';
import { beat } from './heartbeat.ts';
import {
  addMounts,
  createCollector,
  type HeldDescriptors,
  type HeldMount,
  type HeldSocket,
} from './held-descriptors.ts';
import { createKeeperConnections } from './keeper-connections.ts';
import { keeperSocket } from './processes.ts';
import { type MessageOf, ProtocolError } from './protocol.ts';
import { holdServingLock } from './serving-lock.ts';

/** A data path's side. Descriptors that it is given are its own, to be closed when it has no use for them. */
export interface DataPathHandlers {
  /** Begin. Everything that the one before did not finish is in the journal. */
  serve(what: Served): void;
  add(mount: HeldMount): void;
  /** It is being unmounted: whatever waits for it may be dropped. */
  remove(id: string): void;
  /** Puts on the server's disk what was written; when that is done, or the time is up, gives how many files are not whole there. */
  flush(id: string, ms: number): Promise<number>;
  /** At a boundary between requests, if there is one soon. Once it resolves nothing more is read, and `unneeded` follows. */
  stop(): Promise<void>;
  /** Nobody needs this process: to be ended. */
  unneeded(): void;
}

export interface Served {
  /** successor: another process had the journal before, and may have got no further than to be given it. */
  readonly as: 'first' | 'successor';
  readonly journal: number;
  readonly mounts: readonly HeldMount[];
  /** Connections of the one before: to be drained and let go. */
  readonly sockets: readonly HeldSocket[];
}

export interface KeeperLink {
  /** Every mount is served. */
  ready(): void;
  /** Something for people, shown by the agent. Nothing secret. */
  report(text: string): void;
  /**
   * A connection to a server, before anything is sent on it: when this returns, its copy outlives this process. The other
   * end sees it closed only after `letGo`, or after a shutdown.
   */
  hold(fd: number, about: string): string;
  letGo(socket: string): void;
  /** The kernel has no use for a mount any more: `remove` follows. */
  ended(mount: string): void;
  /** This process cannot serve it. `remove` follows, unless somebody else is to try. */
  unserved(mount: string): void;
  /** Before the process ends by itself. */
  close(): void;
}

interface DataPathOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  readonly handlers: DataPathHandlers;
  /** Of the process. */
  readonly signal: AbortSignal;
  readonly socket?: number;
}

const accepts = ['serve', 'add', 'holding', 'remove', 'flush', 'stop', 'moveTo', 'welcome', 'refused'] as const;
type Order = MessageOf<(typeof accepts)[number]>;

/** For a process that a keeper started. It says hello: everything must be loaded by then. */
export function joinKeeper({ clock, log, version, handlers, signal, socket }: DataPathOptions): KeeperLink {
  const collector = createCollector();
  const clean = new DisposableStack();
  let held: HeldDescriptors | undefined;
  let path = '';
  let as: Served['as'] = 'first';
  let sockets = 0;
  let isOver = false;

  function begin(whole: HeldDescriptors): void {
    held = clean.use(whole);
    clean.use(holdServingLock(path, clock));
    clean.use(beat(whole.journal, clock));
    process.title = 'stowage data path';
    const withOwnDescriptor = <T extends { readonly fd: number }>(item: T): T => ({ ...item, fd: duplicate(item.fd) });
    handlers.serve({
      ...{ as, journal: duplicate(whole.journal) },
      mounts: [...whole.mounts.values()].map(withOwnDescriptor),
      sockets: [...whole.sockets.values()].map(withOwnDescriptor),
    });
  }

  function collect(order: MessageOf<'serve' | 'add' | 'holding'>, descriptors: number[]): void {
    if (order.kind === 'serve') ({ path, as } = order);
    const whole = collector.take(order, descriptors);
    if (whole !== undefined) begin(whole);
  }

  function add(served: HeldDescriptors, order: MessageOf<'serve' | 'add' | 'holding'>, descriptors: number[]): void {
    if (order.kind !== 'add') throw new ProtocolError(`a message (${order.kind}) came after everything`);
    addMounts(served, order, descriptors);
    for (const { mount, spec } of order.mounts)
      handlers.add({ id: mount, spec, fd: duplicate(served.mounts.get(mount)?.fd ?? -1) });
  }

  function endMount(mount: string, unserved: boolean): void {
    if (!keepers.isDisconnected) keepers.broadcast({ kind: 'ended', mount, unserved });
    // The next keeper shall not be given what is no more.
    else if (held?.dropMount(mount) === true) handlers.remove(mount);
  }

  async function stop(connection: Connection): Promise<void> {
    await handlers.stop();
    isOver = true;
    clean[Symbol.dispose]();
    held = undefined;
    connection.send({ kind: 'stopped' });
    // Now: it cannot do what its successor does not know of.
    handlers.unneeded();
  }

  async function flush(connection: Connection, { ask, mount, ms }: MessageOf<'flush'>): Promise<void> {
    const files = await handlers.flush(mount, ms);
    // Who has given up everything does not know: a successor is asked.
    if (!isOver) connection.send({ kind: 'flushed', ask, files });
  }

  function handleOrder(connection: Connection, order: Order, descriptors: number[]): void {
    switch (order.kind) {
      case 'serve':
      case 'add':
      case 'holding':
        if (held === undefined) collect(order, descriptors);
        else add(held, order, descriptors);
        break;
      case 'remove':
        if (held?.dropMount(order.mount) === true) handlers.remove(order.mount);
        break;
      case 'flush':
        void flush(connection, order);
        break;
      case 'stop':
        void stop(connection);
        break;
      case 'moveTo':
        keepers.transferTo(order.path);
        break;
      case 'welcome':
        keepers.welcomed(connection);
        break;
      case 'refused':
        log.warn('a keeper has no use for this data path', { reason: order.reason });
        break;
      default:
        order satisfies never;
    }
  }

  const keepers = createKeeperConnections({
    ...{ clock, log, version, signal },
    path: () => path,
    held: () => held,
    handleMessages: (connection, closed) => {
      connection.handle({
        accepts,
        message: (order, descriptors) => handleOrder(connection, order, descriptors),
        closed,
      });
    },
    abandoned: () => {
      collector[Symbol.dispose]();
      if (!isOver) handlers.unneeded();
    },
  });
  keepers.begin(createConnection(socket ?? keeperSocket, clock));

  return {
    ready: () => keepers.broadcast({ kind: 'ready' }),
    report: (text) => keepers.report(text),
    hold: (fd, about) => {
      if (held === undefined) return '';
      const id = `${process.pid}-${++sockets}-${Math.random().toString(36).slice(2)}`;
      const copy = duplicate(fd);
      held.addSocket({ id, about, fd: copy });
      keepers.broadcast({ kind: 'holding', sockets: [{ socket: id, about }] }, [copy]);
      return id;
    },
    letGo: (id) => {
      if (held?.dropSocket(id) === true) keepers.broadcast({ kind: 'letGo', socket: id });
    },
    ended: (mount) => endMount(mount, false),
    unserved: (mount) => endMount(mount, true),
    close: () => {
      isOver = true;
      clean[Symbol.dispose]();
      keepers.close();
    },
  };
}
