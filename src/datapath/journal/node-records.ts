import type { FileHandle } from '#wire/nfs3/structures.ts';
import { hashOf } from './handle-index.ts';
import { maxHandleBytes, record, recordsPerChunk } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** Id 1 is every mount's root, which has no record. */
export const firstId = 2;

/** Access to node records, field by field. */
export interface NodeRecords {
  hasRecord(id: number): boolean;
  get(id: number, field: number): number;
  set(id: number, field: number, value: number): void;
  /** The last word written of a new record, and the first of a removed one. */
  setOwner(id: number, owner: number): void;
  view(id: number, field: number, length: number): Buffer;
  handleOf(id: number): FileHandle;
  hashOfNode(id: number): number;
  putHandle(id: number, handle: FileHandle): void;
  /** The hash of the node's handle. */
  putHash(id: number, hash: number): void;
}

export function createNodeRecords(memory: JournalMemory): NodeRecords {
  const chunkOf = (id: number): DataView => memory.chunks[Math.floor((id - firstId) / recordsPerChunk)] as DataView;
  const offsetOf = (id: number): number => ((id - firstId) % recordsPerChunk) * record.size;
  const get = (id: number, field: number): number => chunkOf(id).getUint32(offsetOf(id) + field, true);
  const set = (id: number, field: number, value: number): void =>
    chunkOf(id).setUint32(offsetOf(id) + field, value, true);
  const hasRecord = (id: number): boolean => id >= firstId && id < firstId + memory.chunks.length * recordsPerChunk;
  const setOwner = (id: number, owner: number): void => {
    const { buffer, byteOffset } = chunkOf(id);
    Atomics.store(new Int32Array(buffer, byteOffset), (offsetOf(id) + record.owner) / 4, owner | 0);
  };

  const view = (id: number, field: number, length: number): Buffer => {
    const { buffer, byteOffset } = chunkOf(id);
    return Buffer.from(buffer as ArrayBuffer, byteOffset + offsetOf(id) + field, length);
  };
  const handleOf = (id: number): FileHandle => view(id, record.handle, get(id, record.handleLength));

  function putHandle(id: number, handle: FileHandle): void {
    if (handle.length > maxHandleBytes) throw new RangeError('a handle longer than NFSv3 allows');
    // Cleared first: after a crash in between, the old hash must not match the new handle.
    set(id, record.hash, 0);
    view(id, record.handle, handle.length).set(handle);
    set(id, record.handleLength, handle.length);
  }

  function putHash(id: number, hash: number): void {
    set(id, record.hash, hash);
    set(id, record.hashed, get(id, record.generation));
  }

  /** Stored, because a successor needs the hash of every node while applications wait. */
  function hashOfNode(id: number): number {
    const known = get(id, record.hash);
    if (known !== 0 && get(id, record.hashed) === get(id, record.generation)) return known;
    const hash = hashOf(handleOf(id));
    putHash(id, hash);
    return hash;
  }

  return { hasRecord, get, set, setOwner, view, handleOf, hashOfNode, putHandle, putHash };
}
