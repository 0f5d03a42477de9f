import type { Socket } from 'node:net';
import type { Clock } from '#base/clock.ts';
import { readPromptly } from '#base/linux/watch-readable.ts';
import { descriptorOf } from '#base/socket-descriptor.ts';
import { createNfsClient, type NfsClient } from '#wire/nfs3/client.ts';
import { nfsProgram, nfsVersion } from '#wire/nfs3/structures.ts';
import { createRpcClient, type RpcClient } from '#wire/rpc/client.ts';
import { createPrivilegedPorts } from '#wire/rpc/privileged-ports.ts';
import type { MountSpec } from './mount-spec.ts';

/** Keeps copies of sockets, so that a successor can close them in order after a crash. */
export interface SocketHolder {
  hold(fd: number, description: string): string;
  release(id: string): void;
}

/** Server connections, shared by mounts with the same parameters. */
export interface Connections {
  /** Dispose the lease when the mount is gone. */
  acquire(spec: MountSpec): ServerLease;
}

export interface ServerLease extends Disposable {
  readonly nfs: NfsClient;
  /** Identifies the server, also for users. */
  readonly serverAddress: string;
  /** Called for each new connection, before anything is sent on it. */
  onConnected(listener: () => void): void;
}

interface SharedConnection {
  leases: number;
  readonly rpc: RpcClient;
  readonly nfs: NfsClient;
  readonly listeners: Set<() => void>;
}

/** Default deadline; each call has its own. */
const defaultDeadlineMs = 30_000;
/** For parallel reads and writes of several requests of all mounts. */
const maxInFlight = 1024;

export function createConnections(clock: Clock, holder: SocketHolder): Connections {
  const connectionByKey = new Map<string, SharedConnection>();
  // Shared by all connections: a port is reused only after all others have been used.
  const privilegedPort = createPrivilegedPorts();

  function createOpenHandler(serverAddress: string, listeners: ReadonlySet<() => void>): (socket: Socket) => void {
    return (socket) => {
      const fd = descriptorOf(socket);
      if (fd === undefined) throw new Error('the connection has no descriptor');
      const id = holder.hold(fd, serverAddress);
      socket.once('close', () => holder.release(id));
      for (const tell of listeners) tell();
    };
  }

  function createClient(spec: MountSpec, serverAddress: string, listeners: ReadonlySet<() => void>): RpcClient {
    const { addresses, port, connections, tls } = spec;
    const [first, ...more] = addresses;
    return createRpcClient({
      clock,
      connections,
      deadlineMs: defaultDeadlineMs,
      maxInFlight,
      addresses: [{ host: first, port }, ...more.map((host) => ({ host, port }))],
      localPort: spec.privilegedPorts ? privilegedPort : undefined,
      onOpened: createOpenHandler(serverAddress, listeners),
      readSocket: readPromptly,
      tls:
        tls === undefined
          ? undefined
          : {
              program: nfsProgram,
              version: nfsVersion,
              options: {
                ...(tls.ca === undefined ? {} : { ca: tls.ca }),
                ...(tls.certificate === undefined ? {} : { cert: tls.certificate }),
                ...(tls.key === undefined ? {} : { key: tls.key }),
                ...(tls.serverName === undefined ? {} : { servername: tls.serverName }),
              },
            },
    });
  }

  return {
    acquire: (spec) => {
      const { addresses, port, connections, privilegedPorts: privileged, tls } = spec;
      const key = JSON.stringify({ addresses, port, connections, privileged, tls });
      const serverAddress = `${addresses[0]}:${port}`;
      const known = connectionByKey.get(key) ?? connect(spec, serverAddress);
      const ownListeners = new Set<() => void>();
      known.leases++;
      connectionByKey.set(key, known);
      return {
        nfs: known.nfs,
        serverAddress,
        onConnected: (listener) => {
          ownListeners.add(listener);
          known.listeners.add(listener);
        },
        [Symbol.dispose]: () => {
          for (const tell of ownListeners) known.listeners.delete(tell);
          if (--known.leases > 0) return;
          connectionByKey.delete(key);
          known.rpc.close();
        },
      };
    },
  };

  function connect(spec: MountSpec, serverAddress: string): SharedConnection {
    const listeners = new Set<() => void>();
    const rpc = createClient(spec, serverAddress, listeners);
    return { leases: 0, rpc, nfs: createNfsClient(rpc, clock), listeners };
  }
}
