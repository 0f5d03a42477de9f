import type { Caller } from '../../rpc/server.ts';

/** The user and groups that a call runs as, after squashing and mapping. */
export interface Credentials {
  readonly uid: number;
  readonly gid: number;
  readonly groups: readonly number[];
  /** The server skips its permission checks; the kernel's still apply. */
  readonly isRoot: boolean;
}

/** The number of a user or group on clients and on this machine. */
export interface IdMapping {
  readonly client: number;
  readonly here: number;
}

export interface IdentityOptions {
  /**
   * Which users are mapped to the anonymous user: root (since clients can claim any user, this denies them at least root), all,
   * or none.
   */
  readonly squash: 'root' | 'all' | 'none';
  readonly anonymous: { readonly uid: number; readonly gid: number };
  readonly users: readonly IdMapping[];
  readonly groups: readonly IdMapping[];
  /**
   * Set if the server runs as an ordinary user: it then executes all calls as that user, which owns everything that it creates.
   */
  readonly serverUser?: Credentials | undefined;
}

export interface Identities {
  credentialsOf(caller: Caller): Credentials;
  /** Maps an owner on disk to the number on clients. */
  toClientUid(uid: number): number;
  toClientGid(gid: number): number;
  /** Maps an owner that a client sets to the number on this machine. */
  toLocalUid(uid: number): number;
  toLocalGid(gid: number): number;
}

/** (uid_t)-1 means "do not change" to chown(2), so no user has it. */
const noId = 0xffff_ffff;

export function createIdentities(options: IdentityOptions): Identities {
  const { squash, anonymous, serverUser } = options;
  const [users, groups] = [createTranslation(options.users), createTranslation(options.groups)];
  const nobody: Credentials = { ...anonymous, groups: [], isRoot: false };
  // The caller object stays the same while a connection sends the same credential.
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
