import type { Attributes } from '#wire/nfs3/structures.ts';
import { credential } from '#wire/rpc/message.ts';

/** Who asks. */
export interface Who {
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

/** As whom a call is sent. */
export interface Identities {
  /** `objects`: what the call is about. */
  credential(who: Who, ...objects: readonly (Attributes | undefined)[]): Buffer;
}

const mostKept = 1024;

/**
 * The kernel has checked what the caller may do, with all groups he is in; it does not tell which. Where a group may do more
 * than others, the object's own group is sent along: the user is always himself, and has no group that was of no use to
 * what the kernel just allowed.
 */
export function createIdentities({ squash, uid, gid, machine }: IdentityOptions): Identities {
  const kept = new Map<string, Buffer>();
  const isSquashed = (who: Who): boolean => squash === 'all' || (squash === 'root' && who.uid === 0);

  return {
    credential: (caller, ...objects) => {
      const who: Who = isSquashed(caller) ? { uid, gid } : caller;
      const groups = who.uid === 0 ? [] : groupsFor(who, objects);
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

function groupsFor(who: Who, objects: readonly (Attributes | undefined)[]): number[] {
  const groups: number[] = [];
  const add = (group: number | undefined): void => {
    if (group !== undefined && group !== who.gid && !groups.includes(group)) groups.push(group);
  };
  // To its owner the group's rights do not apply.
  for (const object of objects)
    if (object !== undefined && object.uid !== who.uid && groupExceedsOthers(object)) add(object.gid);
  add(who.group);
  return groups;
}

const groupExceedsOthers = ({ mode }: Attributes): boolean => ((mode >>> 3) & ~mode & 7) !== 0;
