import type { Socket } from 'node:net';

/** One connection among those of a server. */
export interface AdmittedConnection {
  /** When it last sent something: a number that only grows. */
  lastUse: number;
}

/**
 * Who is connected, up to a number. Whoever comes then takes the place of another: of those from the address that has the
 * most, the one that has been quiet longest. Clients come back by themselves when they have something to say, so nobody
 * can shut out others by connecting often and saying nothing.
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
