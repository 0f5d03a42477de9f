import { stat } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { enterNetwork, type FindNamespace, findNamedNamespace, namespacePath } from '#base/linux/network.ts';
import { StowageError } from '#core/errors.ts';
import type { RpcClientOptions } from '#wire/nfs3/index.ts';
import { NamespaceNotEntered, type NetworkProcess, startNetworkProcess } from './network-process.ts';

/** A network namespace other than that of this process. */
export interface Network extends Disposable {
  lookup(host: string, signal: AbortSignal): Promise<readonly string[]>;
  readonly connect: NonNullable<RpcClientOptions['connect']>;
}

/** Enters a network by its namespace. Callers that enter the same one share a process, which ends with the last of them. */
export type EnterNetwork = (network: string, signal: AbortSignal) => Promise<Network>;

/** Create one for the whole program. Node has no setns(2), so a child process enters the namespace. */
export function createEnterNetwork(clock: Clock, find: FindNamespace = findNamedNamespace): EnterNetwork {
  const namespaces = new Map<string, NamespaceAccess & { users: number }>();
  return async (network, signal) => {
    const shared = namespaces.get(network) ?? { users: 0, ...createNamespaceAccess(network, clock, find) };
    namespaces.set(network, shared);
    shared.users++;
    using resources = new DisposableStack();
    resources.defer(() => {
      if (--shared.users > 0) return;
      namespaces.delete(network);
      shared.close();
    });
    await shared.ensureProcess(signal);
    const sessionResources = resources.move();
    return {
      lookup: async (host, callSignal) => (await shared.ensureProcess(callSignal)).lookup({ host }, callSignal),
      connect: ({ address, localPort, signal: callSignal }) => connect(shared, { ...address, localPort }, callSignal),
      [Symbol.dispose]: () => sessionResources.dispose(),
    };
  };
}

async function connect(
  { ensureProcess: reach }: NamespaceAccess,
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
  ensureProcess(signal: AbortSignal): Promise<NamespaceConnections>;
  close(): void;
}

interface NamespaceConnections extends Pick<NetworkProcess, 'lookup' | 'connect'> {
  /** Closes this connection when the network changes. */
  track(socket: Socket): void;
}

/** A namespace, the process in it, and the connections made there. */
interface EnteredNamespace {
  readonly namespace: string;
  hasEnded(): boolean;
  readonly started: Promise<NetworkProcess>;
  track(socket: Socket): void;
  abandon(): void;
}

/** Connections in a namespace that has lost its interfaces hang until the deadline of each call. So poll for a new namespace of that name. */
const pollIntervalMs = 5_000;

function createNamespaceAccess(network: string, clock: Clock, find: FindNamespace): NamespaceAccess {
  const closing = new AbortController();
  let current: EnteredNamespace | undefined;
  let pollTimer: Disposable | undefined;

  /** Does not use a caller's signal, because other callers may wait for the same process. */
  function start(namespaceRef: string, namespace: string): EnteredNamespace {
    let hasEnded: () => boolean = () => false;
    const started = enterNetwork(namespaceRef)
      .then((command) => startNetworkProcess(command, clock, closing.signal))
      .then((networkProcess) => {
        hasEnded = () => networkProcess.hasEnded;
        if (closing.signal.aborted || current?.started !== started) networkProcess[Symbol.dispose]();
        return networkProcess;
      });
    started.catch(() => {
      hasEnded = () => true;
    });
    schedulePoll();
    return { namespace, started, hasEnded: () => hasEnded(), ...createTrackedSockets() };
  }

  function end(): void {
    current?.started.then((networkProcess) => networkProcess[Symbol.dispose]()).catch(() => undefined);
    current = undefined;
    pollTimer?.[Symbol.dispose]();
  }

  /** Finds the namespace that has the name now. If it is a new namespace, ends our process, which is still in the old one. */
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

  function schedulePoll(): void {
    pollTimer?.[Symbol.dispose]();
    pollTimer = clock.after(pollIntervalMs, () => void poll());
  }

  async function poll(): Promise<void> {
    using limit = clock.deadline(pollIntervalMs, closing.signal);
    // Ignore errors here; callers of `reach` get them.
    await locateNamespace(limit.signal).catch(() => undefined);
    if (current !== undefined) schedulePoll();
  }

  return {
    ensureProcess: async (signal) => {
      signal.throwIfAborted();
      const [namespaceRef, namespace] = await locateNamespace(signal);
      if (current?.hasEnded() === true) end();
      current ??= start(namespaceRef, namespace);
      const { started, track } = current;
      try {
        const { lookup, connect } = await unlessAborted(started, signal);
        return { lookup, connect, track };
      } catch (cause) {
        signal.throwIfAborted();
        throw cause instanceof NamespaceNotEntered ? enterFailure(network, cause) : cause;
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
    throw isErrno(cause, 'EACCES', 'EPERM')
      ? networkDenied(network, cause)
      : networkMissing(network, namespaceRef, cause);
  }
}

function enterFailure(network: string, cause: NamespaceNotEntered): StowageError {
  if (cause.code === 'ENOENT') return networkToolMissing(network, cause);
  if (/not permitted|permission denied/i.test(cause.message)) return networkDenied(network, cause);
  return new StowageError(`the network ${network} cannot be used: ${cause.message}`, {
    code: 'unavailable',
    reason: 'nfs-network-unusable',
    action:
      "Set the store's option network, or --from, to a network namespace (ip netns list shows those with a name).",
    cause,
  });
}

const networkMissing = (network: string, namespaceRef: string, cause: unknown): StowageError =>
  new StowageError(`the network ${network} does not exist: there is no ${namespacePath(namespaceRef)}`, {
    code: 'unavailable',
    reason: 'nfs-network-missing',
    action:
      "Create it (ip netns add), and Stowage opens its stores; or correct the name in the store's option network, or in --from.",
    cause,
  });

const networkDenied = (network: string, cause: unknown): StowageError =>
  new StowageError(`Stowage may not enter the network ${network}`, {
    code: 'denied',
    reason: 'nfs-network-denied',
    action: 'Run Stowage as root, with CAP_SYS_ADMIN; or remove the option network.',
    cause,
  });

const networkToolMissing = (network: string, cause: unknown): StowageError =>
  new StowageError(`the network ${network} cannot be entered: nsenter or ip is not installed`, {
    code: 'unsupported',
    reason: 'nfs-network-tool-missing',
    action:
      'Install nsenter (package util-linux), and for a network with files in /etc/netns also ip (package iproute2).',
    cause,
  });
