import type { Rights } from './identity.ts';

/**
 * By what rights the kernel allows things, of nodes of which nothing else is kept for lack of room: as long as it has the node it may go
 * by them, whatever they are by now. A few bytes for each: nearly all have the same as many others.
 */
export interface KernelRights {
  keep(id: number, rights: Rights): void;
  get(id: number): Rights | undefined;
  forget(id: number): void;
}

const mostShared = 1024;

export function createKernelRights(): KernelRights {
  const byId = new Map<number, Rights>();
  const shared = new Map<string, Rights>();

  function theSame(rights: Rights): Rights {
    const { uid, gid, mode } = rights;
    const key = `${uid} ${gid} ${mode}`;
    const known = shared.get(key);
    if (known !== undefined) return known;
    if (shared.size >= mostShared) shared.clear();
    shared.set(key, rights);
    return rights;
  }

  return {
    keep: (id, rights) => void byId.set(id, theSame(rights)),
    get: (id) => byId.get(id),
    forget: (id) => void byId.delete(id),
  };
}
