import type { Socket } from 'node:net';

/** A connection that the server accepted. */
export interface AdmittedConnection {
  /** When the client last sent something: a number that only grows. */
  lastUse: number;
}

/**
 * Limits the number of connections. When the limit is reached, a new connection evicts the least recently used connection of the
 * address that has the most. Clients reconnect by themselves when they have something to send, so a client cannot lock out others with
 * idle connections.
 */
export interface ConnectionLimit {
  admit(socket: Socket, address: string): AdmittedConnection;
  touch(member: AdmittedConnection): void;
}

export function createConnectionLimit(max: number): ConnectionLimit {
  const byAddress = new Map<string, Map<AdmittedConnection, Socket>>();
  let count = 0;
  let uses = 0;

  function remove(member: AdmittedConnection, address: string): void {
    const members = byAddress.get(address);
    if (members?.delete(member) !== true) return;
    count--;
    if (members.size === 0) byAddress.delete(address);
  }

  function evictOne(): void {
    let largest: readonly [string, ReadonlyMap<AdmittedConnection, Socket>] | undefined;
    for (const one of byAddress) if (one[1].size > (largest?.[1].size ?? 0)) largest = one;
    if (largest === undefined) return;
    const [address, members] = largest;
    let quietest: AdmittedConnection | undefined;
    for (const member of members.keys()) if (member.lastUse < (quietest?.lastUse ?? uses + 1)) quietest = member;
    if (quietest === undefined) return;
    members.get(quietest)?.destroy();
    remove(quietest, address);
  }

  return {
    admit: (socket, address) => {
      if (count >= max) evictOne();
      const member: AdmittedConnection = { lastUse: ++uses };
      const members = byAddress.get(address) ?? new Map<AdmittedConnection, Socket>();
      byAddress.set(address, members.set(member, socket));
      count++;
      socket.on('close', () => remove(member, address));
      return member;
    },
    touch: (member) => {
      member.lastUse = ++uses;
    },
  };
}
