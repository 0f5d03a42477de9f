import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { drainConnections } from './drain-connections.ts';

export interface OldConnection {
  readonly id: string;
  /** The server's address. */
  readonly about: string;
  readonly fd: number;
}

export interface PredecessorConnectionsParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly release: (id: string) => void;
  /** The clients connected to that server. */
  readonly clientsOf: (address: string) => readonly Pick<NfsClient, 'null'>[];
}

/**
 * Changes start only when no call of the predecessor can run any more. Each server is drained separately, so that a
 * silent server delays only the mounts that use it.
 */
export interface PredecessorConnections {
  begin(signal: AbortSignal): void;
  /** Resolves when changes on that server may start. Undefined: now. */
  ready(address: string): Promise<void> | undefined;
}

export function createPredecessorConnections(
  connections: readonly OldConnection[],
  parts: PredecessorConnectionsParts,
): PredecessorConnections {
  const { clock, log, release: letGo, clientsOf } = parts;
  const draining = new Map<string, Promise<void>>();

  async function waitUntilAnswering(address: string, giveUp: AbortSignal): Promise<void> {
    const pings = clientsOf(address).map((nfs) => nfs.null({ signal: giveUp, deadlineMs: Number.POSITIVE_INFINITY }));
    if (pings.length > 0) await Promise.any(pings);
  }

  async function drainServer(
    address: string,
    serverConnections: readonly OldConnection[],
    signal: AbortSignal,
  ): Promise<void> {
    const descriptors = serverConnections.map(({ fd }) => fd);
    await drainConnections(
      descriptors,
      { clock, waitUntilAnswering: (giveUp) => waitUntilAnswering(address, giveUp) },
      signal,
    );
    draining.delete(address);
    for (const { id } of serverConnections) letGo(id);
  }

  return {
    begin: (signal) => {
      for (const [about, serverConnections] of Map.groupBy(connections, (one) => one.about)) {
        const drained = drainServer(about, serverConnections, signal);
        draining.set(about, drained);
        drained.catch((cause: unknown) => log.warn('failed to close old connections', { about, cause: String(cause) }));
      }
    },
    ready: (address) => draining.get(address),
  };
}
