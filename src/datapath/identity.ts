import type { Attributes } from '#wire/nfs3/structures.ts';
import { encodeCredential } from '#wire/rpc/message.ts';

/** The identity of a caller. */
export interface Caller {
  readonly uid: number;
  readonly gid: number;
  /** A group that the kernel has verified for the caller. */
  readonly group?: number | undefined;
}

export interface IdentityOptions {
  readonly squash: 'none' | 'root' | 'all';
  /** The identity of squashed users. */
  readonly uid: number;
  readonly gid: number;
  /** This machine's name in the servers' logs. */
  readonly machine: string;
}

/** Owner, group and mode of an object. */
export type Rights = Pick<Attributes, 'uid' | 'gid' | 'mode'>;

/** The permission that a call needs on the server, as mode bits. */
export const access = { none: 0, search: 1, write: 2, change: 3, list: 4, read: 5 } as const;

/** Builds the credential of a call. */
export interface Identities {
  /** `needs`: one of `access`. `objects`: the rights of the call's objects that the kernel checked. */
  credential(caller: Caller, needs: number, ...objects: readonly (Rights | undefined)[]): Buffer;
}

const maxCachedCredentials = 1024;

/**
 * The kernel has checked the caller with all groups, but does not tell which. Where the group may do more than others,
 * the object's own group is sent along: the caller gets only a group without which the kernel would have refused. Two
 * cases with unknown kernel rights are handled in `server.ts`: those that a predecessor sent, and a file with a stale
 * handle, which is looked up with its directory's group because written data would otherwise be lost. Squashed callers
 * get no group: the kernel checked another identity.
 */
export function createIdentities({ squash, uid, gid, machine }: IdentityOptions): Identities {
  const credentials = new Map<string, Buffer>();
  const isSquashed = (caller: Caller): boolean => squash === 'all' || (squash === 'root' && caller.uid === 0);

  return {
    credential: (caller, needs, ...objects) => {
      const isMapped = isSquashed(caller);
      const sent: Caller = isMapped ? { uid, gid } : caller;
      const groups = isMapped || sent.uid === 0 ? [] : groupsFor(sent, needs, objects);
      const key = `${sent.uid} ${sent.gid} ${groups.join(' ')}`;
      const known = credentials.get(key);
      if (known !== undefined) return known;
      if (credentials.size >= maxCachedCredentials) credentials.clear();
      const made = encodeCredential({ uid: sent.uid, gid: sent.gid, groups, machine });
      credentials.set(key, made);
      return made;
    },
  };
}

function groupsFor(caller: Caller, needs: number, objects: readonly (Rights | undefined)[]): number[] {
  const groups: number[] = [];
  const add = (group: number | undefined): void => {
    if (group !== undefined && group !== caller.gid && !groups.includes(group)) groups.push(group);
  };
  for (const object of objects) if (object !== undefined && needsGroup(caller, needs, object)) add(object.gid);
  add(caller.group);
  return groups;
}

/** Whether the caller needs the group for this. The group's rights do not apply to the owner. */
export const needsGroup = (caller: Caller, needs: number, { uid, mode }: Rights): boolean =>
  caller.uid !== 0 && caller.uid !== uid && ((mode >>> 3) & ~mode & needs) !== 0;

export const areSameRights = (one: Rights, other: Rights): boolean =>
  one.uid === other.uid && one.gid === other.gid && one.mode === other.mode;

/** Reduces attributes to rights. Most objects have the same ones, which then share one object. */
export function createRightsReducer(): (of: Rights) => Rights {
  let last: Rights = { uid: 0, gid: 0, mode: 0 };
  return (attributes) => {
    if (!areSameRights(last, attributes)) last = { uid: attributes.uid, gid: attributes.gid, mode: attributes.mode };
    return last;
  };
}
