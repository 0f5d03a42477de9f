import type { Rights } from './identity.ts';

/**
 * The rights by which the kernel permits access, for nodes dropped from the attribute cache: as long as the kernel
 * has the node, it may use them, even if they are outdated. A few bytes each: nearly all nodes share the same object.
 */
export interface KernelRights {
  keep(id: number, rights: Rights): void;
  get(id: number): Rights | undefined;
  forget(id: number): void;
}

const maxSharedRights = 1024;

export function createKernelRights(): KernelRights {
  const byId = new Map<number, Rights>();
  const shared = new Map<string, Rights>();

  function sharedRights(rights: Rights): Rights {
    const { uid, gid, mode } = rights;
    const key = `${uid} ${gid} ${mode}`;
    const known = shared.get(key);
    if (known !== undefined) return known;
    if (shared.size >= maxSharedRights) shared.clear();
    shared.set(key, rights);
    return rights;
  }

  return {
    keep: (id, rights) => void byId.set(id, sharedRights(rights)),
    get: (id) => byId.get(id),
    forget: (id) => void byId.delete(id),
  };
}
