import type { Clock } from '#base/clock.ts';
import { duplicate } from '#base/linux/socket-pair.ts';
import type { Log } from '#base/log.ts';
import { type Connection, createConnection } from './connection.ts';
import { startHeartbeat } from './heartbeat.ts';
import {
  addMounts,
  createCollector,
  type HeldDescriptors,
  type HeldMount,
  type HeldSocket,
} from './held-descriptors.ts';
import { createKeeperConnections } from './keeper-connections.ts';
import { keeperSocketFd } from './processes.ts';
import { type MessageOf, ProtocolError } from './protocol.ts';
import { holdServingLock } from './serving-lock.ts';

/** The data path's side. The data path owns the descriptors it receives and closes them. */
export interface DataPathHandlers {
  /** Start serving. The journal has everything that the predecessor did not finish. */
  serve(order: ServeOrder): void;
  add(mount: HeldMount): void;
  /** The mount is being unmounted: drop its pending requests. */
  remove(id: string): void;
  /**
   * Commits written data on the server. Returns the number of files still incomplete there, when done or when the time
   * is up.
   */
  flush(id: string, ms: number): Promise<number>;
  /** Stops between two requests if possible. After it resolves, nothing more is read, and `exit` is called. */
  stop(): Promise<void>;
  /** No keeper needs this process: exit. */
  exit(): void;
}

export interface ServeOrder {
  /** successor: another process had the journal before. It may have died right after receiving it. */
  readonly as: 'first' | 'successor';
  readonly journal: number;
  readonly mounts: readonly HeldMount[];
  /** The predecessor's connections, to be drained and closed. */
  readonly sockets: readonly HeldSocket[];
}

export interface KeeperLink {
  /** All mounts are served. */
  ready(): void;
  /** A message for users, shown by the agent. Must not contain secrets. */
  report(text: string): void;
  /**
   * Registers a server connection before its first byte is sent. When this returns, the keeper's copy outlives this
   * process. The server sees the connection closed only after `release` or a shutdown.
   */
  hold(fd: number, about: string): string;
  release(socket: string): void;
  /** The kernel has ended the mount: `remove` follows. */
  reportEnded(mount: string): void;
  /** This process cannot serve the mount. `remove` follows, unless another program is to try. */
  reportUnserved(mount: string): void;
  /** Call before exiting voluntarily. */
  close(): void;
}

interface DataPathOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  readonly handlers: DataPathHandlers;
  /** Aborts when the process stops. */
  readonly signal: AbortSignal;
  readonly socket?: number;
}

const accepts = ['serve', 'add', 'holding', 'remove', 'flush', 'stop', 'moveTo', 'welcome', 'refused'] as const;
type Order = MessageOf<(typeof accepts)[number]>;

/** For a process started by a keeper. Sends hello, so everything must be loaded before. */
export function joinKeeper({ clock, log, version, handlers, signal, socket }: DataPathOptions): KeeperLink {
  const collector = createCollector();
  const cleanup = new DisposableStack();
  let held: HeldDescriptors | undefined;
  let path = '';
  let as: ServeOrder['as'] = 'first';
  let lastSocket = 0;
  let isOver = false;

  function startServing(complete: HeldDescriptors): void {
    held = cleanup.use(complete);
    cleanup.use(holdServingLock(path, clock));
    cleanup.use(startHeartbeat(complete.journal, clock));
    process.title = 'stowage data path';
    const withOwnDescriptor = <T extends { readonly fd: number }>(item: T): T => ({ ...item, fd: duplicate(item.fd) });
    handlers.serve({
      as,
      journal: duplicate(complete.journal),
      mounts: [...complete.mounts.values()].map(withOwnDescriptor),
      sockets: [...complete.sockets.values()].map(withOwnDescriptor),
    });
  }

  function collect(order: MessageOf<'serve' | 'add' | 'holding'>, descriptors: number[]): void {
    if (order.kind === 'serve') ({ path, as } = order);
    const complete = collector.take(order, descriptors);
    if (complete !== undefined) startServing(complete);
  }

  function add(served: HeldDescriptors, order: MessageOf<'serve' | 'add' | 'holding'>, descriptors: number[]): void {
    if (order.kind !== 'add') throw new ProtocolError(`a message (${order.kind}) came after a complete transfer`);
    addMounts(served, order, descriptors);
    for (const { mount, spec } of order.mounts)
      handlers.add({ id: mount, spec, fd: duplicate(served.mounts.get(mount)?.fd ?? -1) });
  }

  function endMount(mount: string, unserved: boolean): void {
    if (!keepers.isDisconnected) keepers.broadcast({ kind: 'ended', mount, unserved });
    // Drop it here, so that the next keeper does not get it.
    else if (held?.dropMount(mount) === true) handlers.remove(mount);
  }

  async function stop(connection: Connection): Promise<void> {
    await handlers.stop();
    isOver = true;
    cleanup[Symbol.dispose]();
    held = undefined;
    connection.send({ kind: 'stopped' });
    // Exit now: the successor would not know of anything that this process did later.
    handlers.exit();
  }

  async function flush(connection: Connection, { ask, mount, ms }: MessageOf<'flush'>): Promise<void> {
    const files = await handlers.flush(mount, ms);
    // A stopped data path cannot answer; the keeper asks its successor.
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
        keepers.transferAccepted(connection);
        break;
      case 'refused':
        log.warn('a keeper rejected this data path', { reason: order.reason });
        break;
      default:
        order satisfies never;
    }
  }

  const keepers = createKeeperConnections({
    clock,
    log,
    version,
    signal,
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
      if (!isOver) handlers.exit();
    },
  });
  keepers.begin(createConnection(socket ?? keeperSocketFd, clock));

  return {
    ready: () => keepers.broadcast({ kind: 'ready' }),
    report: (text) => keepers.report(text),
    hold: (fd, about) => {
      if (held === undefined) return '';
      const id = `${process.pid}-${++lastSocket}-${Math.random().toString(36).slice(2)}`;
      const copy = duplicate(fd);
      held.addSocket({ id, about, fd: copy });
      keepers.broadcast({ kind: 'holding', sockets: [{ socket: id, about }] }, [copy]);
      return id;
    },
    release: (id) => {
      if (held?.dropSocket(id) === true) keepers.broadcast({ kind: 'letGo', socket: id });
    },
    reportEnded: (mount) => endMount(mount, false),
    reportUnserved: (mount) => endMount(mount, true),
    close: () => {
      isOver = true;
      cleanup[Symbol.dispose]();
      keepers.close();
    },
  };
}
