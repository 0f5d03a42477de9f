import type { Caller } from '../../rpc/server.ts';

/** Whom a call is done for, after squashing and mapping. */
export interface Who {
  readonly uid: number;
  readonly gid: number;
  readonly groups: readonly number[];
  /** Nothing is forbidden to it, save by the system. */
  readonly isRoot: boolean;
}

/** One user or group, as clients and as this machine number them. */
export interface Mapped {
  readonly client: number;
  readonly here: number;
}

export interface IdentityOptions {
  /** Who is made anonymous: root (as clients can claim to be anybody, at least not that), everybody, or nobody. */
  readonly squash: 'root' | 'all' | 'none';
  readonly anonymous: { readonly uid: number; readonly gid: number };
  readonly users: readonly Mapped[];
  readonly groups: readonly Mapped[];
  /**
   * Set where the server itself is an ordinary user: everything is done as that one, since it can be done as no other,
   * and everything it makes belongs to it.
   */
  readonly only?: Who | undefined;
}

export interface Identities {
  who(caller: Caller): Who;
  /** Of an owner on disk, for clients. */
  shownUid(uid: number): number;
  shownGid(gid: number): number;
  /** Of an owner that a client wants to give. */
  givenUid(uid: number): number;
  givenGid(gid: number): number;
}

/** (uid_t)-1 means "leave it" to the system: nobody can be that. */
const nobodyCanBe = 0xffff_ffff;

export function createIdentities(options: IdentityOptions): Identities {
  const { squash, anonymous, only } = options;
  const [users, groups] = [translation(options.users), translation(options.groups)];
  const nobody: Who = { ...anonymous, groups: [], isRoot: false };
  // A caller is one object for as long as a connection sends the same credential.
  const known = new WeakMap<Caller, Who>();

  function identify({ identity }: Caller): Who {
    if (only !== undefined) return only;
    if (identity === undefined || squash === 'all') return nobody;
    const squashed = (id: number, to: number): number =>
      id === nobodyCanBe || (id === 0 && squash === 'root') ? to : id;
    const uid = squashed(users.here(identity.uid), anonymous.uid);
    const group = (gid: number): number => squashed(groups.here(gid), anonymous.gid);
    return { uid, gid: group(identity.gid), groups: identity.groups.map(group), isRoot: uid === 0 };
  }

  return {
    who: (caller) => {
      const found = known.get(caller);
      if (found !== undefined) return found;
      const who = identify(caller);
      known.set(caller, who);
      return who;
    },
    shownUid: users.there,
    shownGid: groups.there,
    givenUid: users.here,
    givenGid: groups.here,
  };
}

function translation(mapped: readonly Mapped[]): {
  readonly here: (id: number) => number;
  readonly there: (id: number) => number;
} {
  if (mapped.length === 0) return { here: (id) => id, there: (id) => id };
  const here = new Map(mapped.map((one) => [one.client, one.here]));
  const there = new Map(mapped.map((one) => [one.here, one.client]));
  return { here: (id) => here.get(id) ?? id, there: (id) => there.get(id) ?? id };
}
