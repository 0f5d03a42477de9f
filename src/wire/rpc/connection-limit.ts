import type { Socket } from 'node:net';

/** One connection among those of a server. */
export interface Member {
  /** When it last sent something: a number that only grows. */
  usedAt: number;
}

/**
 * Who is connected, up to a number. Whoever comes then takes the place of another: of those from the address that has the
 * most, the one that has been quiet longest. Clients come back by themselves when they have something to say, so nobody
 * can shut out others by connecting often and saying nothing.
 */
export interface Crowd {
  admit(socket: Socket, address: string): Member;
  used(member: Member): void;
}

export function createCrowd(most: number): Crowd {
  const byAddress = new Map<string, Map<Member, Socket>>();
  let count = 0;
  let uses = 0;

  function leave(member: Member, address: string): void {
    const members = byAddress.get(address);
    if (members?.delete(member) !== true) return;
    count--;
    if (members.size === 0) byAddress.delete(address);
  }

  function dismissOne(): void {
    let largest: readonly [string, ReadonlyMap<Member, Socket>] | undefined;
    for (const one of byAddress) if (one[1].size > (largest?.[1].size ?? 0)) largest = one;
    if (largest === undefined) return;
    const [address, members] = largest;
    let quietest: Member | undefined;
    for (const member of members.keys()) if (member.usedAt < (quietest?.usedAt ?? uses + 1)) quietest = member;
    if (quietest === undefined) return;
    members.get(quietest)?.destroy();
    leave(quietest, address);
  }

  return {
    admit: (socket, address) => {
      if (count >= most) dismissOne();
      const member: Member = { usedAt: ++uses };
      const members = byAddress.get(address) ?? new Map<Member, Socket>();
      byAddress.set(address, members.set(member, socket));
      count++;
      socket.on('close', () => leave(member, address));
      return member;
    },
    used: (member) => {
      member.usedAt = ++uses;
    },
  };
}
