import type { Proof, Proofs } from '../ports.ts';
import { line, lineAt, lineWord, phase } from './layout.ts';
import type { JournalMemory } from './memory.ts';

export const noProof = 0;
const proofNumber = { made: 1, gone: 2, moved: 3 } as const;

/** The proof of whether a request's call was executed, in the request's line. */
export function createProofs({ words, view, bytes }: JournalMemory): Proofs {
  const handleOf = (place: number): Buffer => {
    const from = lineAt(place, line.handle);
    return Buffer.from(bytes.subarray(from, from + view.getUint32(lineAt(place, line.handleLength), true)));
  };

  function find(place: number): Proof | undefined {
    switch (words[lineWord(place, line.proof)]) {
      case proofNumber.made:
        return {
          kind: 'made',
          seconds: view.getFloat64(lineAt(place, line.seconds), true),
          nanoseconds: view.getUint32(lineAt(place, line.nanoseconds), true),
        };
      case proofNumber.gone:
        return { kind: 'gone', handle: handleOf(place) };
      case proofNumber.moved:
        return { kind: 'moved', handle: handleOf(place) };
      default:
        return undefined;
    }
  }

  function write(place: number, proof: Proof): void {
    if (proof.kind === 'made') {
      view.setFloat64(lineAt(place, line.seconds), proof.seconds, true);
      view.setUint32(lineAt(place, line.nanoseconds), proof.nanoseconds, true);
    } else {
      bytes.set(proof.handle, lineAt(place, line.handle));
      view.setUint32(lineAt(place, line.handleLength), proof.handle.length, true);
    }
    // The process can be killed between any two stores: write the proof's fields before its kind.
    Atomics.store(words, lineWord(place, line.proof), proofNumber[proof.kind]);
    Atomics.store(words, lineWord(place, line.phase), phase.sent);
  }

  return { find, write };
}
