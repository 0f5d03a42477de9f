import { createHash, randomBytes } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { ProcessMarks } from '#core/ports.ts';
import { presumedDeadMs } from '../file-store/store-root.ts';

/** Names in `.stowage/tmp`. They consist of the instance, the process, one opening of the store, and a number. */
export interface ScratchNames {
  next(): string;
  /**
   * Whether a dead process left the file: the process is known to be dead, or we first saw the file too long ago. No name is used twice, and
   * a host renames its file within 30 s or gives up. If a suspended host still tries later, its call fails, and nothing is lost.
   */
  isLeftover(name: string): boolean;
}

export interface ScratchNamesParts {
  readonly instance: string;
  readonly marks: ProcessMarks;
  readonly clock: Clock;
}

/** For files of other instances, whose host may be gone for good or may have lost its state folder. */
const otherInstanceMs = 3_600_000;
const maxSeenNames = 10_000;

const hex = (mark: number): string => mark.toString(16).padStart(8, '0');

export function createScratchNames({ instance, marks, clock }: ScratchNamesParts): ScratchNames {
  const ownPrefix = createHash('sha256').update(instance).digest('hex').slice(0, 12);
  const processPrefix = `${ownPrefix}-${hex(marks.own)}`;
  const deadPrefixes = marks.dead.map((mark) => `${ownPrefix}-${hex(mark)}`);
  const namePrefix = `${processPrefix}${randomBytes(4).toString('hex')}`;
  /** When each file was first seen. Two processes of one instance can run at the same time, while one controller takes over from the other. */
  const firstSeen = new Map<string, number>();
  let count = 0;

  /** Drops entries whose files have been renamed or removed by now. */
  function forgetOld(): void {
    for (const [name, since] of firstSeen) if (clock.elapsed() - since > 2 * otherInstanceMs) firstSeen.delete(name);
  }

  return {
    next: () => `${namePrefix}-${++count}`,
    isLeftover: (name) => {
      if (name.startsWith(processPrefix)) return false;
      if (deadPrefixes.some((prefix) => name.startsWith(prefix))) return true;
      if (firstSeen.size >= maxSeenNames && !firstSeen.has(name)) forgetOld();
      if (firstSeen.size >= maxSeenNames && !firstSeen.has(name)) return false;
      const since = firstSeen.get(name) ?? clock.elapsed();
      firstSeen.set(name, since);
      return clock.elapsed() - since > (name.startsWith(`${ownPrefix}-`) ? 2 * presumedDeadMs : otherInstanceMs);
    },
  };
}
