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
  const anonymousCredentials: Credentials = { ...anonymous, groups: [], isRoot: false };
  // The caller object stays the same while a connection sends the same credential.
  const known = new WeakMap<Caller, Credentials>();

  function identify({ identity }: Caller): Credentials {
    if (serverUser !== undefined) return serverUser;
    if (identity === undefined || squash === 'all') return anonymousCredentials;
    const squashId = (id: number, to: number): number => (id === noId || (id === 0 && squash === 'root') ? to : id);
    const uid = squashId(users.toLocal(identity.uid), anonymous.uid);
    const group = (gid: number): number => squashId(groups.toLocal(gid), anonymous.gid);
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
    toClientUid: users.toClient,
    toClientGid: groups.toClient,
    toLocalUid: users.toLocal,
    toLocalGid: groups.toLocal,
  };
}

function createTranslation(mappings: readonly IdMapping[]): {
  readonly toLocal: (id: number) => number;
  readonly toClient: (id: number) => number;
} {
  if (mappings.length === 0) return { toLocal: (id) => id, toClient: (id) => id };
  const here = new Map(mappings.map((one) => [one.client, one.here]));
  const there = new Map(mappings.map((one) => [one.here, one.client]));
  return { toLocal: (id) => here.get(id) ?? id, toClient: (id) => there.get(id) ?? id };
}
