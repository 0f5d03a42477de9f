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
  hold(fd: number, about: string): string;
  letGo(id: string): void;
}

/** Server connections, shared by mounts with the same parameters. */
export interface Connections {
  /** Dispose the lease when the mount is gone. */
  acquire(spec: MountSpec): ServerLease;
}

export interface ServerLease extends Disposable {
  readonly nfs: NfsClient;
  /** Identifies the server, also for users. */
  readonly about: string;
  /** Called for each new connection, before anything is sent on it. */
  onConnected(tell: () => void): void;
}

interface SharedConnection {
  users: number;
  readonly rpc: RpcClient;
  readonly nfs: NfsClient;
  readonly listeners: Set<() => void>;
}

/** Default deadline; each call has its own. */
const usualDeadlineMs = 30_000;
/** For parallel reads and writes of several requests of all mounts. */
const maxInFlight = 1024;

export function createConnections(clock: Clock, holder: SocketHolder): Connections {
  const shared = new Map<string, SharedConnection>();
  // Shared by all: a port is reused only after all others were.
  const privilegedPort = createPrivilegedPorts();

  function onOpened(about: string, listeners: ReadonlySet<() => void>): (socket: Socket) => void {
    return (socket) => {
      const fd = descriptorOf(socket);
      if (fd === undefined) throw new Error('the connection has no descriptor');
      const id = holder.hold(fd, about);
      socket.once('close', () => holder.letGo(id));
      for (const tell of listeners) tell();
    };
  }

  function make(spec: MountSpec, about: string, listeners: ReadonlySet<() => void>): RpcClient {
    const { addresses, port, connections, tls } = spec;
    const [first, ...more] = addresses;
    return createRpcClient({
      clock,
      connections,
      deadlineMs: usualDeadlineMs,
      maxInFlight: maxInFlight,
      addresses: [{ host: first, port }, ...more.map((host) => ({ host, port }))],
      localPort: spec.privilegedPorts ? privilegedPort : undefined,
      onOpened: onOpened(about, listeners),
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
      const about = `${addresses[0]}:${port}`;
      const known = shared.get(key) ?? connect(spec, about);
      const own = new Set<() => void>();
      known.users++;
      shared.set(key, known);
      return {
        nfs: known.nfs,
        about,
        onConnected: (tell) => {
          own.add(tell);
          known.listeners.add(tell);
        },
        [Symbol.dispose]: () => {
          for (const tell of own) known.listeners.delete(tell);
          if (--known.users > 0) return;
          shared.delete(key);
          known.rpc.close();
        },
      };
    },
  };

  function connect(spec: MountSpec, about: string): SharedConnection {
    const listeners = new Set<() => void>();
    const rpc = make(spec, about, listeners);
    return { users: 0, rpc, nfs: createNfsClient(rpc, clock), listeners };
  }
}
