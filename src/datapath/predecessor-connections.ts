import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { drainConnections } from './drain-connections.ts';

export interface OldConnection {
  readonly id: string;
  /** To which server. */
  readonly about: string;
  readonly fd: number;
}

export interface PredecessorConnectionsParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly letGo: (id: string) => void;
  /** Of that server. */
  readonly clientsOf: (about: string) => readonly Pick<NfsClient, 'null'>[];
}

/**
 * What a predecessor sent is either done or will never be, before anything is changed: of each server by itself, so that one
 * that is silent keeps nobody waiting but those who use it.
 */
export interface PredecessorConnections {
  begin(signal: AbortSignal): void;
  /** Something to be waited for before anything is changed on the server. */
  ready(about: string): Promise<void> | undefined;
}

export function createPredecessorConnections(
  connections: readonly OldConnection[],
  parts: PredecessorConnectionsParts,
): PredecessorConnections {
  const { clock, log, letGo, clientsOf } = parts;
  const under = new Map<string, Promise<void>>();

  async function isAnswering(about: string, giveUp: AbortSignal): Promise<void> {
    const asked = clientsOf(about).map((nfs) => nfs.null({ signal: giveUp, deadlineMs: Number.POSITIVE_INFINITY }));
    if (asked.length > 0) await Promise.any(asked);
  }

  async function drainOne(about: string, own: readonly OldConnection[], signal: AbortSignal): Promise<void> {
    const descriptors = own.map(({ fd }) => fd);
    await drainConnections(descriptors, { clock, isAnswering: (giveUp) => isAnswering(about, giveUp) }, signal);
    under.delete(about);
    for (const { id } of own) letGo(id);
  }

  return {
    begin: (signal) => {
      for (const [about, own] of Map.groupBy(connections, (one) => one.about)) {
        const drained = drainOne(about, own, signal);
        under.set(about, drained);
        drained.catch((cause: unknown) => log.warn('old connections were not ended', { about, cause: String(cause) }));
      }
    },
    ready: (about) => under.get(about),
  };
}
