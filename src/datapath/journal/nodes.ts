import { rootNode } from '#wire/fuse/abi.ts';
import { Errno, type ErrnoName, errno } from '#wire/fuse/errno.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { Hidden, Node, Nodes } from '../ports.ts';
import { createCrowding, usualLimits } from './crowding.ts';
import { createHandleIndex, type HandleIndex } from './handle-index.ts';
import { longestName, record, recordsPerChunk } from './layout.ts';
import type { JournalMemory } from './memory.ts';
import { createNodeRecords, firstId } from './node-records.ts';
import { createSteps } from './steps.ts';

/** Nodes of all mounts. A node's number is where its record lies: 2 is the first; 1 is every mount's root. */
export interface NodeTable {
  /** Those of one mount; its root is not in the table. */
  of(mount: number, root: FileHandle): Nodes;
  /** Everything of a mount that is unmounted. */
  drop(mount: number): void;
  readonly size: number;
}

/** Owner of a record that says where a removed file is. */
const hiding = 0xffff_ffff;

/** By their numbers. */
const errors = new Map(Object.entries(errno).map(([name, number]) => [number as number, name as ErrnoName]));

const isSame = (one: Uint8Array, other: Uint8Array): boolean =>
  one.length === other.length && Buffer.compare(one, other) === 0;

export function createNodeTable(memory: JournalMemory, limits = usualLimits): NodeTable {
  const free: number[] = [];
  const indexes = new Map<number, HandleIndex>();
  const steps = createSteps(memory);
  const crowding = createCrowding(limits, (mount) => indexOf(mount).size);

  const { get, set, own, view, handleOf, putHandle, isThere } = createNodeRecords(memory);

  function take(): number {
    const id = free.pop();
    if (id !== undefined) return id;
    const first = firstId + memory.chunks.length * recordsPerChunk;
    if (memory.addChunk() === undefined) throw new Errno('ENOMEM');
    for (let next = first + recordsPerChunk - 1; next > first; next--) free.push(next);
    return first;
  }

  function letGo(id: number): void {
    own(id, 0);
    free.push(id);
  }

  const indexOf = (mount: number): HandleIndex => {
    const known = indexes.get(mount);
    if (known !== undefined) return known;
    const made = createHandleIndex((key, id) => isSame(handleOf(id), key), handleOf);
    indexes.set(mount, made);
    return made;
  };

  /** Downwards, so that low numbers are given out first. */
  function restore(): void {
    for (let id = firstId + memory.chunks.length * recordsPerChunk - 1; id >= firstId; id--) {
      const owner = get(id, record.owner);
      if (owner === 0) free.push(id);
      else if (owner !== hiding) {
        indexOf(owner - 1).add(handleOf(id), id);
        crowding.grown();
      }
    }
    // One whose file was closed, or not yet told of it: nobody points to it.
    for (const id of everyId()) if (get(id, record.owner) === hiding && !isPointedTo(id)) letGo(id);
  }

  function* everyId(): Generator<number> {
    for (let id = firstId; id < firstId + memory.chunks.length * recordsPerChunk; id++) yield id;
  }

  const isPointedTo = (id: number): boolean => {
    const file = get(id, record.opens);
    return isThere(file) && get(file, record.owner) !== 0 && get(file, record.hidden) === id;
  };

  function unhide(id: number): void {
    const hidden = get(id, record.hidden);
    if (hidden === 0) return;
    set(id, record.hidden, 0);
    letGo(hidden);
  }

  function remove(mount: number, id: number): void {
    indexOf(mount).remove(handleOf(id), id);
    unhide(id);
    letGo(id);
    crowding.shrunk();
  }

  function of(mount: number, root: FileHandle): Nodes {
    const index = indexOf(mount);
    const owner = mount + 1;
    let rootOpens = 0;
    const isOurs = (id: number): boolean => isThere(id) && get(id, record.owner) === owner;
    const node = (id: number): Node => ({
      id,
      generation: get(id, record.generation),
      // A copy: a call may be sent again when the record is somebody else's.
      handle: Buffer.from(handleOf(id)),
      opens: get(id, record.opens),
    });
    const rootOf = (): Node => ({ id: rootNode, generation: 0, handle: root, opens: rootOpens });
    const countOpen = (id: number, by: number, place: number | undefined): void => {
      if (id === rootNode) rootOpens += by;
      else if (isOurs(id))
        steps.once({ place, what: 'opened', node: id, becomes: Math.max(0, get(id, record.opens) + by) }, (count) =>
          set(id, record.opens, count),
        );
    };

    function make(handle: FileHandle, place: number | undefined): number {
      if (!crowding.hasRoom()) throw new Errno('ENOMEM');
      const id = take();
      putHandle(id, handle);
      set(id, record.generation, get(id, record.generation) + 1);
      set(id, record.lookups, 1);
      set(id, record.opens, 0);
      set(id, record.hidden, 0);
      set(id, record.lost, 0);
      steps.once({ place, what: 'looked', node: id, becomes: 1 }, () => own(id, owner));
      index.add(handle, id);
      crowding.grown();
      return id;
    }

    function look(handle: FileHandle, place?: number): number {
      const known = index.find(handle);
      if (known === undefined) return make(handle, place);
      steps.once({ place, what: 'looked', node: known, becomes: get(known, record.lookups) + 1 }, (count) =>
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
      looked: (handle, place) => (isSame(handle, root) ? rootOf() : node(look(handle, place))),
      listed: (handle, place) => {
        if (isSame(handle, root)) return rootOf();
        const known = index.find(handle) ?? 0;
        if (steps.wasListed(place, known)) return node(known);
        const id = look(handle);
        steps.listed(place, id);
        return node(id);
      },
      unlooked: (id, place) => {
        steps.takeBack(place, id);
        forget(id, 1);
      },
      hasRoom: crowding.hasRoom,
      onMany: (give) => crowding.onMany(mount, give),
      get: (id) => (id === rootNode ? rootOf() : isOurs(id) ? node(id) : undefined),
      find: (handle) => {
        if (isSame(handle, root)) return rootOf();
        const known = index.find(handle);
        return known === undefined ? undefined : node(known);
      },
      forget,
      opened: (id, place) => countOpen(id, 1, place),
      closed: (id, place) => countOpen(id, -1, place),
      changeHandle: (id, handle) => {
        if (!isOurs(id)) return;
        index.remove(handleOf(id), id);
        putHandle(id, handle);
        index.add(handle, id);
      },
      hide: (id, place) => {
        if (!isOurs(id)) return;
        unhide(id);
        if (place !== undefined) set(id, record.hidden, hide(id, place));
      },
      hidden: (id) => {
        const at = isOurs(id) ? get(id, record.hidden) : 0;
        return at === 0 ? undefined : hiddenAt(at);
      },
      setLost: (id, code) => {
        if (isOurs(id)) set(id, record.lost, code === undefined ? 0 : errno[code]);
      },
      lost: (id) => {
        const number = isOurs(id) ? get(id, record.lost) : 0;
        return number === 0 ? undefined : (errors.get(number) ?? 'EIO');
      },
    };
  }

  function hide(file: number, { directory, name }: Hidden): number {
    if (Buffer.byteLength(name) > longestName) throw new RangeError('the name of a hidden file is too long');
    const id = take();
    putHandle(id, directory);
    // The file that it belongs to, where a node has its opens.
    set(id, record.opens, file);
    const written = view(id, record.name + 4, longestName).write(name);
    set(id, record.name, written);
    own(id, hiding);
    return id;
  }

  const hiddenAt = (id: number): Hidden => ({
    directory: Buffer.from(handleOf(id)),
    name: view(id, record.name + 4, get(id, record.name)).toString(),
  });

  /** Of a node that was just being made, too: all but whose it is was there. */
  steps.end(({ mount, what, node, becomes }) => {
    if (!isThere(node) || ![0, mount + 1].includes(get(node, record.owner))) return;
    if (what === 'looked') own(node, mount + 1);
    set(node, what === 'looked' ? record.lookups : record.opens, becomes);
  });
  restore();
  return {
    of,
    drop: (mount) => {
      for (const id of everyId()) if (get(id, record.owner) === mount + 1) remove(mount, id);
      indexes.delete(mount);
      crowding.drop(mount);
    },
    get size() {
      return crowding.size;
    },
  };
}
