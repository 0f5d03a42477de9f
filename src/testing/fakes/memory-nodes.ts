import type { HiddenName, Node, Nodes, Proof, Proofs } from '#datapath/ports.ts';
import { rootNode } from '#wire/fuse/abi.ts';
import type { ErrnoName } from '#wire/fuse/errno.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';

interface JournaledWrites {
  readonly id: number;
  readonly generation: number;
  handle: FileHandle;
  opens: number;
  lookups: number;
  hidden: HiddenName | undefined;
  lost: ErrnoName | undefined;
  isLossTold: boolean;
}

/** The state that tests inspect. */
export interface MemoryNodes extends Nodes {
  /** The number of nodes without the root. */
  readonly size: number;
}

/** Nodes in the memory of this process. */
export function createMemoryNodes(root: FileHandle): MemoryNodes {
  const byId = new Map<number, JournaledWrites>();
  const byHandle = new Map<string, JournaledWrites>();
  let last: number = rootNode;
  const keyOf = (handle: FileHandle): string => Buffer.from(handle).toString('latin1');
  const add = (id: number, handle: FileHandle): JournaledWrites => {
    const nothing = { opens: 0, lookups: 0, hidden: undefined, lost: undefined, isLossTold: false };
    const made: JournaledWrites = { id, generation: 1, handle, ...nothing };
    byId.set(id, made);
    byHandle.set(keyOf(handle), made);
    return made;
  };
  const looked = (handle: FileHandle): Node => {
    const kept = byHandle.get(keyOf(handle)) ?? add(++last, Uint8Array.from(handle));
    kept.lookups++;
    return shown(kept);
  };
  const forget = (id: number, lookups: number): void => {
    const kept = byId.get(id);
    if (kept === undefined || id === rootNode) return;
    kept.lookups -= lookups;
    if (kept.lookups < 0) throw new Error(`node ${id} was forgotten more often than it was looked up`);
    if (kept.lookups > 0) return;
    byId.delete(id);
    byHandle.delete(keyOf(kept.handle));
  };
  const shown = ({ id, generation, handle, opens }: JournaledWrites): Node => ({ id, generation, handle, opens });
  add(rootNode, root);
  return {
    addLookup: looked,
    addListed: looked,
    forget,
    removeLookup: (id) => forget(id, 1),
    hasRoom: () => true,
    onPressure: () => undefined,
    get: (id) => {
      const kept = byId.get(id);
      return kept && shown(kept);
    },
    find: (handle) => {
      const kept = byHandle.get(keyOf(handle));
      return kept && shown(kept);
    },
    addOpen: (id) => {
      const kept = byId.get(id);
      if (kept !== undefined) kept.opens++;
    },
    removeOpen: (id) => {
      const kept = byId.get(id);
      if (kept !== undefined) kept.opens--;
    },
    changeHandle: (id, handle) => {
      const kept = byId.get(id);
      if (kept === undefined) return;
      byHandle.delete(keyOf(kept.handle));
      kept.handle = handle;
      byHandle.set(keyOf(handle), kept);
    },
    setHiddenName: (id, at) => {
      const kept = byId.get(id);
      if (kept !== undefined) kept.hidden = at;
    },
    hiddenName: (id) => byId.get(id)?.hidden,
    setDataLoss: (id, why) => {
      const kept = byId.get(id);
      if (kept !== undefined) [kept.lost, kept.isLossTold] = [why, false];
    },
    dataLoss: (id) => byId.get(id)?.lost,
    setLossReported: (id) => {
      const kept = byId.get(id);
      if (kept !== undefined) kept.isLossTold = kept.lost !== undefined;
    },
    isLossReported: (id) => byId.get(id)?.isLossTold === true,
    get size() {
      return byId.size - 1;
    },
  };
}

/** Proofs of requests in flight. A test keeps them for a successor, and clears each one when its request is answered. */
export function createMemoryProofs(): Proofs & { clear(place: number): void } {
  const kept = new Map<number, Proof>();
  return {
    find: (place) => kept.get(place),
    write: (place, proof) => {
      kept.set(place, proof);
    },
    clear: (place) => {
      kept.delete(place);
    },
  };
}
