import { chunkSize, hiddenNameOwner, record, recordsPerChunk } from './layout.ts';
import type { JournalMemory } from './memory.ts';
import { firstId } from './node-records.ts';

/** The records found in the journal. */
export interface FoundNodes {
  /** Descending, so that low ids are handed out first. */
  readonly free: readonly number[];
  readonly hiddenNames: readonly number[];
  /** By owner: node and hash, alternating. 0: unknown. */
  readonly owned: ReadonlyMap<number, readonly number[]>;
}

/** Reads word by word, without calls: applications wait for this, and Node has not compiled anything yet. */
export function findNodes(memory: JournalMemory): FoundNodes {
  const free: number[] = [];
  const hiddenNames: number[] = [];
  const owned = new Map<number, number[]>();
  for (let chunk = memory.chunks.length - 1; chunk >= 0; chunk--) {
    const { buffer, byteOffset } = memory.chunks[chunk] as DataView;
    const words = new Uint32Array(buffer, byteOffset, chunkSize / 4);
    let offset = words.length;
    for (let id = firstId + (chunk + 1) * recordsPerChunk - 1; offset > 0; id--) {
      offset -= record.size / 4;
      const owner = words[offset] as number;
      if (owner === 0) free.push(id);
      else if (owner === hiddenNameOwner) hiddenNames.push(id);
      else {
        const ids = owned.get(owner) ?? [];
        if (ids.length === 0) owned.set(owner, ids);
        const isHashed = words[offset + record.hashed / 4] === words[offset + record.generation / 4];
        ids.push(id, isHashed ? (words[offset + record.hash / 4] as number) : 0);
      }
    }
  }
  return { free, hiddenNames, owned };
}
