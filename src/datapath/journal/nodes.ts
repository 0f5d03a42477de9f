import { rootNode } from '#wire/fuse/abi.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { Node, Nodes } from '../ports.ts';
import { findNodes } from './find-nodes.ts';
import { createHandleIndex, type HandleIndex, hashOf } from './handle-index.ts';
import { createHiddenNames } from './hidden-names.ts';
import { createIdempotentCounts } from './idempotent-counts.ts';
import { record, recordsPerChunk } from './layout.ts';
import { createLostData } from './lost-data.ts';
import type { JournalMemory } from './memory.ts';
import { createNodePressure, defaultLimits } from './node-pressure.ts';
import { createNodeRecords, firstId } from './node-records.ts';

/** The nodes of all mounts. A node's id is the position of its record, starting at 2; 1 is every mount's root. */
export interface NodeTable {
  /** The nodes of one mount; its root is not in the table. */
  openMount(mount: number, root: FileHandle): Nodes;
  /** Removes everything of an unmounted mount. */
  drop(mount: number): void;
  readonly size: number;
}

const isSameHandle = (one: Uint8Array, other: Uint8Array): boolean =>
  one.length === other.length && Buffer.compare(one, other) === 0;

export function createNodeTable(memory: JournalMemory, limits = defaultLimits): NodeTable {
  const free: number[] = [];
  const indexes = new Map<number, HandleIndex>();
  /** By mount: marks its nodes as gone for calls still in flight. */
  const markGone = new Map<number, () => void>();
  const counts = createIdempotentCounts(memory);
  const pressure = createNodePressure(limits, (mount) => indexOf(mount).size);

  const records = createNodeRecords(memory);
  const { get, set, setOwner, handleOf, hashOfNode, putHandle, putHash, hasRecord } = records;
  const hiddenNames = createHiddenNames(records, takeRecord);

  function takeRecord(): number {
    const id = free.pop();
    if (id !== undefined) return id;
    const first = firstId + memory.chunks.length * recordsPerChunk;
    if (memory.addChunk() === undefined) throw new Errno('ENOMEM');
    for (let next = first + recordsPerChunk - 1; next > first; next--) free.push(next);
    return first;
  }

  function release(id: number): void {
    setOwner(id, 0);
    free.push(id);
  }

  const indexOf = (mount: number, room = 0): HandleIndex => {
    const known = indexes.get(mount);
    if (known !== undefined) return known;
    const made = createHandleIndex((key, id) => isSameHandle(handleOf(id), key), hashOfNode, room);
    indexes.set(mount, made);
    return made;
  };

  function restore(): void {
    const left = findNodes(memory);
    for (const id of left.free) free.push(id);
    for (const [owner, ids] of left.owned) {
      const index = indexOf(owner - 1, ids.length / 2);
      for (let i = 0; i < ids.length; i += 2) index.add(ids[i + 1] || hashOfNode(ids[i] as number), ids[i] as number);
      pressure.add(ids.length / 2);
    }
    // Free hidden names to which no file refers: the file was closed, or the process died before it set the reference.
    for (const id of left.hiddenNames) if (!hiddenNames.isReferenced(id)) release(id);
  }

  function* everyId(): Generator<number> {
    for (let id = firstId; id < firstId + memory.chunks.length * recordsPerChunk; id++) yield id;
  }

  function unhide(id: number): void {
    const hiddenRecord = get(id, record.hidden);
    if (hiddenRecord === 0) return;
    set(id, record.hidden, 0);
    release(hiddenRecord);
  }

  function remove(mount: number, id: number): void {
    indexOf(mount).remove(hashOfNode(id), id);
    unhide(id);
    release(id);
    pressure.removeOne();
  }

  function openMount(mount: number, root: FileHandle): Nodes {
    const index = indexOf(mount);
    const owner = mount + 1;
    let rootOpens = 0;
    let isGone = false;
    markGone.set(mount, () => {
      isGone = true;
    });
    // After the mount is gone, its ids and journal places may belong to another mount.
    const isOurs = (id: number): boolean => !isGone && hasRecord(id) && get(id, record.owner) === owner;
    const node = (id: number): Node => ({
      id,
      generation: get(id, record.generation),
      // Copied: a call may be resent after the record was reused.
      handle: Buffer.from(handleOf(id)),
      opens: get(id, record.opens),
    });
    const currentRoot = (): Node => ({ id: rootNode, generation: 0, handle: root, opens: rootOpens });
    const countOpen = (id: number, by: number, place: number | undefined): void => {
      if (id === rootNode) rootOpens += by;
      else if (isOurs(id))
        counts.applyOnce(
          { place, field: 'opened', node: id, newCount: Math.max(0, get(id, record.opens) + by) },
          (count) => set(id, record.opens, count),
        );
    };

    function createNode(handle: FileHandle, hash: number, place: number | undefined): number {
      if (isGone) throw new Errno('ESTALE');
      if (!pressure.hasRoom()) throw new Errno('ENOMEM');
      const id = takeRecord();
      set(id, record.generation, get(id, record.generation) + 1);
      putHandle(id, handle);
      putHash(id, hash);
      set(id, record.lookups, 1);
      set(id, record.opens, 0);
      set(id, record.hidden, 0);
      set(id, record.lost, 0);
      counts.applyOnce({ place, field: 'looked', node: id, newCount: 1 }, () => setOwner(id, owner));
      // The request was answered before a crash and the kernel has forgotten the node since, so the step was skipped.
      if (get(id, record.owner) !== owner) setOwner(id, owner);
      index.add(hash, id);
      pressure.add();
      return id;
    }

    function lookUp(handle: FileHandle, place?: number): number {
      const hash = hashOf(handle);
      const known = index.find(handle, hash);
      if (known === undefined) return createNode(handle, hash, place);
      counts.applyOnce({ place, field: 'looked', node: known, newCount: get(known, record.lookups) + 1 }, (count) =>
        set(known, record.lookups, count),
      );
      return known;
    }

    function forget(id: number, lookups: number): void {
      if (!isOurs(id)) return;
      const left = get(id, record.lookups) - lookups;
      if (left > 0) set(id, record.lookups, left);
      else remove(mount, id);
    }

    return {
      addLookup: (handle, place) => (isSameHandle(handle, root) ? currentRoot() : node(lookUp(handle, place))),
      addListed: (handle, place) => {
        if (isSameHandle(handle, root)) return currentRoot();
        const known = index.find(handle, hashOf(handle)) ?? 0;
        if (counts.takeListed(place, known)) return node(known);
        const id = lookUp(handle);
        counts.recordListed(place, id);
        return node(id);
      },
      removeLookup: (id, place) => {
        if (isGone) return;
        counts.takeBack(place, id);
        forget(id, 1);
      },
      hasRoom: pressure.hasRoom,
      onPressure: (shrink) => pressure.onPressure(mount, shrink),
      get: (id) => (id === rootNode ? currentRoot() : isOurs(id) ? node(id) : undefined),
      find: (handle) => {
        if (isSameHandle(handle, root)) return currentRoot();
        const known = index.find(handle, hashOf(handle));
        return known === undefined ? undefined : node(known);
      },
      forget,
      addOpen: (id, place) => countOpen(id, 1, place),
      removeOpen: (id, place) => countOpen(id, -1, place),
      changeHandle: (id, handle) => {
        if (!isOurs(id)) return;
        index.remove(hashOfNode(id), id);
        putHandle(id, handle);
        index.add(hashOfNode(id), id);
      },
      setHiddenName: (id, place) => {
        if (!isOurs(id)) return;
        const before = get(id, record.hidden);
        set(id, record.hidden, place === undefined ? 0 : hiddenNames.put(id, place));
        // Freed last: after a crash in between, the hidden name would be unknown.
        if (before !== 0) release(before);
      },
      hiddenName: (id) => {
        const at = isOurs(id) ? get(id, record.hidden) : 0;
        return at === 0 ? undefined : hiddenNames.get(at);
      },
      ...createLostData(records, isOurs),
    };
  }

  /** Also for a node that was being created: only its owner was missing. */
  counts.completeInterrupted(({ mount, field: what, node, newCount: becomes }) => {
    if (!hasRecord(node) || ![0, mount + 1].includes(get(node, record.owner))) return;
    if (what === 'looked') setOwner(node, mount + 1);
    set(node, what === 'looked' ? record.lookups : record.opens, becomes);
  });
  restore();
  return {
    openMount,
    drop: (mount) => {
      for (const id of everyId()) if (get(id, record.owner) === mount + 1) remove(mount, id);
      indexes.delete(mount);
      pressure.removeMount(mount);
      markGone.get(mount)?.();
      markGone.delete(mount);
    },
    get size() {
      return pressure.size;
    },
  };
}
