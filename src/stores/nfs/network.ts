import { stat } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { enterNetwork, type FindNamespace, findNamedNamespace, namespacePath } from '#base/linux/network.ts';
import { StowageError } from '#core/errors.ts';
import type { RpcClientOptions } from '#wire/nfs3/index.ts';
import { type NetworkProcess, NotEntered, startNetworkProcess } from './network-process.ts';

/** A network namespace other than that of this process. */
export interface Network extends Disposable {
  lookup(host: string, signal: AbortSignal): Promise<readonly string[]>;
  readonly connect: NonNullable<RpcClientOptions['connect']>;
}

/** Enters a network by its namespace. Callers that enter the same one share a process, which ends with the last of them. */
export type EnterNetwork = (network: string, signal: AbortSignal) => Promise<Network>;

/** Create one for the whole program. Node has no setns(2), so a child process enters the namespace. */
export function createEnterNetwork(clock: Clock, find: FindNamespace = findNamedNamespace): EnterNetwork {
  const entered = new Map<string, NamespaceAccess & { users: number }>();
  return async (network, signal) => {
    const shared = entered.get(network) ?? { users: 0, ...createNamespaceAccess(network, clock, find) };
    entered.set(network, shared);
    shared.users++;
    using leaving = new DisposableStack();
    leaving.defer(() => {
      if (--shared.users > 0) return;
      entered.delete(network);
      shared.close();
    });
    await shared.reach(signal);
    const leave = leaving.move();
    return {
      lookup: async (host, until) => (await shared.reach(until)).lookup({ host }, until),
      connect: ({ address, localPort, signal: until }) => connect(shared, { ...address, localPort }, until),
      [Symbol.dispose]: () => leave.dispose(),
    };
  };
}

async function connect(
  { reach }: NamespaceAccess,
  { host, port, localPort }: { readonly host: string; readonly port: number; readonly localPort: number | undefined },
  signal: AbortSignal,
): Promise<Socket> {
  const namespace = await reach(signal);
  const socket = await namespace.connect({ address: host, port, localPort }, signal);
  namespace.track(socket);
  return socket;
}

interface NamespaceAccess {
  /** The process in the namespace. Starts it if there is none. */
  reach(signal: AbortSignal): Promise<NamespaceConnections>;
  close(): void;
}

interface NamespaceConnections extends Pick<NetworkProcess, 'lookup' | 'connect'> {
  /** Closes this connection when the network changes. */
  track(socket: Socket): void;
}

/** A namespace, the process in it, and the connections made there. */
interface EnteredNamespace {
  readonly namespace: string;
  isOver(): boolean;
  readonly started: Promise<NetworkProcess>;
  track(socket: Socket): void;
  abandon(): void;
}

/** Connections in a namespace without interfaces are silent, and calls on them would wait for their deadlines. So poll for a new one. */
const lookMs = 5_000;

function createNamespaceAccess(network: string, clock: Clock, find: FindNamespace): NamespaceAccess {
  const closing = new AbortController();
  let current: EnteredNamespace | undefined;
  let looking: Disposable | undefined;

  /** Takes no caller's signal, because other callers may wait for it too. */
  function start(namespaceRef: string, namespace: string): EnteredNamespace {
    let isOver: () => boolean = () => false;
    const started = enterNetwork(namespaceRef)
      .then((command) => startNetworkProcess(command, clock, closing.signal))
      .then((there) => {
        isOver = () => there.isOver;
        if (closing.signal.aborted || current?.started !== started) there[Symbol.dispose]();
        return there;
      });
    started.catch(() => {
      isOver = () => true;
    });
    lookLater();
    return { namespace, started, isOver: () => isOver(), ...createTrackedSockets() };
  }

  function end(): void {
    current?.started.then((there) => there[Symbol.dispose]()).catch(() => undefined);
    current = undefined;
    looking?.[Symbol.dispose]();
  }

  /** Finds the namespace that has the name now. If it is a new one, ends our process, which is still in the old one. */
  async function locateNamespace(signal: AbortSignal): Promise<readonly [namespaceRef: string, namespace: string]> {
    const namespaceRef = await find(network, signal);
    const namespace = await namespaceAt(network, namespaceRef);
    closing.signal.throwIfAborted();
    if (current !== undefined && current.namespace !== namespace) {
      current.abandon();
      end();
    }
    return [namespaceRef, namespace];
  }

  function lookLater(): void {
    looking?.[Symbol.dispose]();
    looking = clock.after(lookMs, () => void look());
  }

  async function look(): Promise<void> {
    using limit = clock.deadline(lookMs, closing.signal);
    // Ignore errors here; callers of `reach` get them.
    await locateNamespace(limit.signal).catch(() => undefined);
    if (current !== undefined) lookLater();
  }

  return {
    reach: async (signal) => {
      signal.throwIfAborted();
      const [namespaceRef, namespace] = await locateNamespace(signal);
      if (current?.isOver() === true) end();
      current ??= start(namespaceRef, namespace);
      const { started, track } = current;
      try {
        const { lookup, connect } = await unlessAborted(started, signal);
        return { lookup, connect, track };
      } catch (cause) {
        signal.throwIfAborted();
        throw cause instanceof NotEntered ? notEntered(network, cause) : cause;
      }
    },
    close: () => {
      closing.abort();
      end();
    },
  };
}

function createTrackedSockets(): Pick<EnteredNamespace, 'track' | 'abandon'> {
  const sockets = new Set<Socket>();
  let isAbandoned = false;
  return {
    track: (socket) => {
      if (isAbandoned) return void socket.destroy();
      sockets.add(socket);
      socket.once('close', () => sockets.delete(socket));
    },
    abandon: () => {
      isAbandoned = true;
      for (const socket of sockets) socket.destroy();
    },
  };
}

/** Device and inode identify the namespace. */
async function namespaceAt(network: string, namespaceRef: string): Promise<string> {
  try {
    const { dev, ino } = await stat(namespacePath(namespaceRef), { bigint: true });
    return `${dev}:${ino}`;
  } catch (cause) {
    throw isErrno(cause, 'EACCES', 'EPERM') ? denied(network, cause) : missing(network, namespaceRef, cause);
  }
}

function notEntered(network: string, cause: NotEntered): StowageError {
  if (cause.code === 'ENOENT') return toolMissing(network, cause);
  if (/not permitted|permission denied/i.test(cause.message)) return denied(network, cause);
  return new StowageError(`the network ${network} cannot be used: ${cause.message}`, {
    code: 'unavailable',
    reason: 'nfs-network-unusable',
    action:
      "Give a network namespace (ip netns list shows those with a name) in the store's option network, or in --from.",
    cause,
  });
}

const missing = (network: string, namespaceRef: string, cause: unknown): StowageError =>
  new StowageError(`the network ${network} does not exist: there is no ${namespacePath(namespaceRef)}`, {
    code: 'unavailable',
    reason: 'nfs-network-missing',
    action:
      "Create it (ip netns add): Stowage then opens its stores; or correct the name in the store's option network, or in --from.",
    cause,
  });

const denied = (network: string, cause: unknown): StowageError =>
  new StowageError(`Stowage may not enter the network ${network}`, {
    code: 'denied',
    reason: 'nfs-network-denied',
    action: 'Run Stowage as root, with CAP_SYS_ADMIN; or leave out the option network.',
    cause,
  });

const toolMissing = (network: string, cause: unknown): StowageError =>
  new StowageError(`the network ${network} cannot be entered: the program for it is not installed`, {
    code: 'unsupported',
    reason: 'nfs-network-tool-missing',
    action:
      'Install nsenter (package util-linux), and for a network with files in /etc/netns also ip (package iproute2).',
    cause,
  });
