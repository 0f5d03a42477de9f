import type { Socket } from 'node:net';

/** A connection that the server accepted. */
export interface AdmittedConnection {
  /** The sequence number of the last use, which grows with each use of any connection. */
  lastUseNumber: number;
}

/**
 * Limits the number of connections. When the limit is reached, a new connection evicts the least recently used connection of the
 * address that has the most. Clients reconnect by themselves when they have something to send, so a client cannot lock out others with
 * idle connections.
 */
export interface ConnectionLimit {
  add(socket: Socket, address: string): AdmittedConnection;
  recordUse(connection: AdmittedConnection): void;
}

export function createConnectionLimit(max: number): ConnectionLimit {
  const byAddress = new Map<string, Map<AdmittedConnection, Socket>>();
  let count = 0;
  let uses = 0;

  function remove(connection: AdmittedConnection, address: string): void {
    const members = byAddress.get(address);
    if (members?.delete(connection) !== true) return;
    count--;
    if (members.size === 0) byAddress.delete(address);
  }

  function evictOne(): void {
    let largest: readonly [string, ReadonlyMap<AdmittedConnection, Socket>] | undefined;
    for (const one of byAddress) if (one[1].size > (largest?.[1].size ?? 0)) largest = one;
    if (largest === undefined) return;
    const [address, members] = largest;
    let leastRecentlyUsed: AdmittedConnection | undefined;
    for (const member of members.keys())
      if (member.lastUseNumber < (leastRecentlyUsed?.lastUseNumber ?? uses + 1)) leastRecentlyUsed = member;
    if (leastRecentlyUsed === undefined) return;
    members.get(leastRecentlyUsed)?.destroy();
    remove(leastRecentlyUsed, address);
  }

  return {
    add: (socket, address) => {
      if (count >= max) evictOne();
      const member: AdmittedConnection = { lastUseNumber: ++uses };
      const members = byAddress.get(address) ?? new Map<AdmittedConnection, Socket>();
      byAddress.set(address, members.set(member, socket));
      count++;
      socket.on('close', () => remove(member, address));
      return member;
    },
    recordUse: (connection) => {
      connection.lastUseNumber = ++uses;
    },
  };
}
