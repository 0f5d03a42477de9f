import type { Attributes } from '#wire/nfs3/structures.ts';
import type { Quota } from './quota.ts';

/**
 * What the requests of a mount cost. By what is known of a file when it is written to: a file without holes takes more room only
 * beyond its end; one with holes at most as much as is written, and never more than its holes. What this gets wrong, for
 * example where the server compresses, the next count puts right.
 */
export interface Charges {
  /** Before a write. Undefined: it takes no more room, or there is enough; else it rejects with EDQUOT, or there is. */
  write(id: number, offset: number, length: number): Promise<void> | undefined;
  /** It was cut, or made longer, from one to the other. */
  resized(id: number, before: Attributes | undefined, after: Attributes | undefined): void;
  /** Of what has lost a name: if that was its last, its room is free. */
  removed(id: number | undefined, attributes: Attributes | undefined): void;
  forget(id: number): void;
}

/** What was charged for a file since it was last known how much it takes. */
interface Charged {
  /** Up to here. */
  end: number;
  /** Into holes. */
  filled: number;
}

const block = 4096;
const roundUp = (bytes: number): number => Math.ceil(bytes / block) * block;

export function createCharges(
  quota: Pick<Quota, 'admit' | 'changed'>,
  known: (id: number) => Attributes | undefined,
): Charges {
  const charged = new Map<number, Charged>();

  function costOf(id: number, offset: number, length: number): { readonly beyond: number; readonly inside: number } {
    const { size = 0, used = 0 } = known(id) ?? {};
    const before = charged.get(id) ?? { end: 0, filled: 0 };
    const end = Math.max(roundUp(size), before.end);
    const beyond = Math.max(0, roundUp(offset + length) - Math.max(end, roundUp(offset + 1) - block));
    const holes = Math.max(0, roundUp(size) - used - before.filled);
    const within = Math.max(0, Math.min(end, roundUp(offset + length)) - offset);
    return { beyond, inside: Math.min(holes, roundUp(within)) };
  }

  return {
    write: (id, offset, length) => {
      const { beyond, inside } = costOf(id, offset, length);
      const bytes = beyond + inside;
      if (bytes === 0) return undefined;
      const before = charged.get(id) ?? { end: 0, filled: 0 };
      const entry = { end: Math.max(before.end, roundUp(offset + length)), filled: before.filled + inside };
      charged.set(id, entry);
      return quota.admit(bytes).then(
        () => quota.changed(bytes, bytes),
        (cause: unknown) => {
          if (charged.get(id) === entry) charged.set(id, before);
          throw cause;
        },
      );
    },
    resized: (id, before, after) => {
      const last = charged.get(id);
      charged.delete(id);
      if (before === undefined || after === undefined) return;
      const took = Math.max(before.used, last?.end ?? 0);
      if (after.size < before.size || after.used < took) quota.changed(Math.min(0, after.used - took));
    },
    removed: (id, attributes) => {
      const last = id === undefined ? undefined : charged.get(id);
      if (attributes === undefined || attributes.links > 1) return;
      if (id !== undefined) charged.delete(id);
      const took = Math.max(attributes.used, last?.end ?? 0);
      if (took > 0) quota.changed(-took);
    },
    forget: (id) => void charged.delete(id),
  };
}

/** Of a mount whose volume's size is not enforced. */
export const noCharges: Charges = {
  write: () => undefined,
  resized: () => undefined,
  removed: () => undefined,
  forget: () => undefined,
};
