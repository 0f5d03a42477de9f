import type { Text } from '../xdr/writer.ts';
import { type Attributes, fileType, type SetAttributes } from './structures.ts';

export const isSameText = (a: Text, b: Text): boolean => Buffer.from(a as string).equals(Buffer.from(b as string));

/** Whether the attributes match this SETATTR. Ignores times that it sets to the server's clock, since they can't be compared. */
export function matchesSetattr(actual: Attributes, { mode, uid, gid, size, atime, mtime }: SetAttributes): boolean {
  const comparedPairs = [
    [mode, actual.mode],
    [uid, actual.uid],
    [gid, actual.gid],
    [size, actual.size],
    ...timePairs(atime, actual.atime, actual.atimeNs),
    ...timePairs(mtime, actual.mtime, actual.mtimeNs),
  ].filter(([wanted]) => wanted !== undefined);
  return comparedPairs.length > 0 && comparedPairs.every(([wanted, found]) => wanted === found);
}

const timePairs = (time: SetAttributes['atime'], seconds: number, nanoseconds: number) =>
  time === undefined || time === 'now'
    ? []
    : [
        [time.seconds, seconds],
        [time.nanoseconds, nanoseconds],
      ];

export const matchesCreate = (actual: Attributes, set: SetAttributes): boolean =>
  actual.type === fileType.regular && actual.size === (set.size ?? 0) && hasTimesOf(actual, set);

/**
 * Compares explicit times only. They distinguish a file that this client created from one that another client created meanwhile.
 */
export const hasTimesOf = (actual: Attributes, { atime, mtime }: SetAttributes): boolean =>
  [...timePairs(atime, actual.atime, actual.atimeNs), ...timePairs(mtime, actual.mtime, actual.mtimeNs)].every(
    ([wanted, is]) => wanted === is,
  );
