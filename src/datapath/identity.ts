import type { Attributes } from '#wire/nfs3/structures.ts';
import { credential } from '#wire/rpc/message.ts';

/** Who asks. */
export interface Caller {
  readonly uid: number;
  readonly gid: number;
  /** A group that the kernel has found him to be in. */
  readonly group?: number | undefined;
}

export interface IdentityOptions {
  readonly squash: 'none' | 'root' | 'all';
  /** Whom those are turned into who are squashed. */
  readonly uid: number;
  readonly gid: number;
  /** The name of this machine, as servers log it. */
  readonly machine: string;
}

/** Whose something is, and who may use it. */
export type Rights = Pick<Attributes, 'uid' | 'gid' | 'mode'>;

/** What a call takes at the server, in the bits of a mode. */
export const access = { none: 0, search: 1, write: 2, change: 3, list: 4, read: 5 } as const;

/** As whom a call is sent. */
export interface Identities {
  /** `needs`: one of `access`. `objects`: what the call is about, as the kernel knew it when it allowed it. */
  credential(who: Caller, needs: number, ...objects: readonly (Rights | undefined)[]): Buffer;
}

const mostKept = 1024;

/**
 * The kernel has checked what the caller may do, with all groups he is in; it does not tell which. Where the group may do what
 * others may not, the object's own group is sent along: whoever asks has no group but one without which the kernel would not have
 * allowed this. But for two cases in which what it went by is not known, both in `server.ts`: what a predecessor told it, and a file
 * whose handle the server does not know any more, which is looked for by the group of its directory: what was written to it would be lost.
 * Whoever is squashed has none: the kernel checked somebody else.
 */
export function createIdentities({ squash, uid, gid, machine }: IdentityOptions): Identities {
  const kept = new Map<string, Buffer>();
  const isSquashed = (who: Caller): boolean => squash === 'all' || (squash === 'root' && who.uid === 0);

  return {
    credential: (caller, needs, ...objects) => {
      const isOther = isSquashed(caller);
      const who: Caller = isOther ? { uid, gid } : caller;
      const groups = isOther || who.uid === 0 ? [] : groupsFor(who, needs, objects);
      const key = `${who.uid} ${who.gid} ${groups.join(' ')}`;
      const known = kept.get(key);
      if (known !== undefined) return known;
      if (kept.size >= mostKept) kept.clear();
      const made = credential({ uid: who.uid, gid: who.gid, groups, machine });
      kept.set(key, made);
      return made;
    },
  };
}

function groupsFor(who: Caller, needs: number, objects: readonly (Rights | undefined)[]): number[] {
  const groups: number[] = [];
  const add = (group: number | undefined): void => {
    if (group !== undefined && group !== who.gid && !groups.includes(group)) groups.push(group);
  };
  for (const object of objects) if (object !== undefined && needsGroup(who, needs, object)) add(object.gid);
  add(who.group);
  return groups;
}

/** Whether he needs to be in the group to do it. To its owner the group's rights do not apply. */
export const needsGroup = (who: Caller, needs: number, { uid, mode }: Rights): boolean =>
  who.uid !== 0 && who.uid !== uid && ((mode >>> 3) & ~mode & needs) !== 0;

export const areSameRights = (one: Rights, other: Rights): boolean =>
  one.uid === other.uid && one.gid === other.gid && one.mode === other.mode;

/** Without all else that is known of something. Most things have the same: then it is one for all of them. */
export function createRightsOf(): (of: Rights) => Rights {
  let last: Rights = { uid: 0, gid: 0, mode: 0 };
  return (of) => {
    if (!areSameRights(last, of)) last = { uid: of.uid, gid: of.gid, mode: of.mode };
    return last;
  };
}
