import type { Caller } from '../../rpc/server.ts';

/** Whom a call is done for, after squashing and mapping. */
export interface Credentials {
  readonly uid: number;
  readonly gid: number;
  readonly groups: readonly number[];
  /** Nothing is forbidden to it, save by the system. */
  readonly isRoot: boolean;
}

/** One user or group, as clients and as this machine number them. */
export interface IdMapping {
  readonly client: number;
  readonly here: number;
}

export interface IdentityOptions {
  /** Who is made anonymous: root (as clients can claim to be anybody, at least not that), everybody, or nobody. */
  readonly squash: 'root' | 'all' | 'none';
  readonly anonymous: { readonly uid: number; readonly gid: number };
  readonly users: readonly IdMapping[];
  readonly groups: readonly IdMapping[];
  /**
   * Set where the server itself is an ordinary user: everything is done as that one, since it can be done as no other,
   * and everything it makes belongs to it.
   */
  readonly serverUser?: Credentials | undefined;
}

export interface Identities {
  credentialsOf(caller: Caller): Credentials;
  /** Of an owner on disk, for clients. */
  toClientUid(uid: number): number;
  toClientGid(gid: number): number;
  /** Of an owner that a client wants to give. */
  toLocalUid(uid: number): number;
  toLocalGid(gid: number): number;
}

/** (uid_t)-1 means "leave it" to the system: nobody can be that. */
const noId = 0xffff_ffff;

export function createIdentities(options: IdentityOptions): Identities {
  const { squash, anonymous, serverUser } = options;
  const [users, groups] = [createTranslation(options.users), createTranslation(options.groups)];
  const nobody: Credentials = { ...anonymous, groups: [], isRoot: false };
  // A caller is one object for as long as a connection sends the same credential.
  const known = new WeakMap<Caller, Credentials>();

  function identify({ identity }: Caller): Credentials {
    if (serverUser !== undefined) return serverUser;
    if (identity === undefined || squash === 'all') return nobody;
    const squashed = (id: number, to: number): number => (id === noId || (id === 0 && squash === 'root') ? to : id);
    const uid = squashed(users.here(identity.uid), anonymous.uid);
    const group = (gid: number): number => squashed(groups.here(gid), anonymous.gid);
    return { uid, gid: group(identity.gid), groups: identity.groups.map(group), isRoot: uid === 0 };
  }

  return {
    credentialsOf: (caller) => {
      const found = known.get(caller);
      if (found !== undefined) return found;
      const who = identify(caller);
      known.set(caller, who);
      return who;
    },
    toClientUid: users.there,
    toClientGid: groups.there,
    toLocalUid: users.here,
    toLocalGid: groups.here,
  };
}

function createTranslation(mapped: readonly IdMapping[]): {
  readonly here: (id: number) => number;
  readonly there: (id: number) => number;
} {
  if (mapped.length === 0) return { here: (id) => id, there: (id) => id };
  const here = new Map(mapped.map((one) => [one.client, one.here]));
  const there = new Map(mapped.map((one) => [one.here, one.client]));
  return { here: (id) => here.get(id) ?? id, there: (id) => there.get(id) ?? id };
}
