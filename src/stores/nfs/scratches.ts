import { createHash, randomBytes } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { ProcessMarks } from '#core/ports.ts';
import { takenForDeadMs } from '../shelf/place.ts';

/** Names in `.stowage/tmp`: of the instance, of the process, of one opening of the store, and a number. */
export interface Scratches {
  next(): string;
  /** Left by a process of this instance that is dead: it is known to be, or the file has been there for too long. */
  isLeftover(name: string): boolean;
}

export interface ScratchesParts {
  readonly instance: string;
  readonly marks: ProcessMarks;
  readonly clock: Clock;
}

const hex = (mark: number): string => mark.toString(16).padStart(8, '0');

export function createScratches({ instance, marks, clock }: ScratchesParts): Scratches {
  const mine = createHash('sha256').update(instance).digest('hex').slice(0, 12);
  const process = `${mine}-${hex(marks.own)}`;
  const dead = marks.dead.map((mark) => `${mine}-${hex(mark)}`);
  const run = `${process}${randomBytes(4).toString('hex')}`;
  /** Two processes of one instance can live at a time: two controllers while one takes over from the other. */
  const seen = new Map<string, number>();
  let count = 0;
  return {
    next: () => `${run}-${++count}`,
    isLeftover: (name) => {
      if (!name.startsWith(`${mine}-`) || name.startsWith(marks.isShared === true ? run : process)) return false;
      if (dead.some((before) => name.startsWith(before))) return true;
      const since = seen.get(name) ?? clock.elapsed();
      seen.set(name, since);
      return clock.elapsed() - since > 2 * takenForDeadMs;
    },
  };
}
