import type { Text } from '../xdr/writer.ts';
import { type Attributes, fileType, type SetAttributes } from './structures.ts';

export const isSameText = (a: Text, b: Text): boolean => Buffer.from(a as string).equals(Buffer.from(b as string));

/** Whether the attributes are those that this SETATTR sets. A time set to the server's clock proves nothing. */
export function matchesSetattr(is: Attributes, { mode, uid, gid, size, atime, mtime }: SetAttributes): boolean {
  const known = [
    [mode, is.mode],
    [uid, is.uid],
    [gid, is.gid],
    [size, is.size],
    ...timePairs(atime, is.atime, is.atimeNs),
    ...timePairs(mtime, is.mtime, is.mtimeNs),
  ].filter(([wanted]) => wanted !== undefined);
  return known.length > 0 && known.every(([wanted, found]) => wanted === found);
}

const timePairs = (time: SetAttributes['atime'], seconds: number, nanoseconds: number) =>
  time === undefined || time === 'now'
    ? []
    : [
        [time.seconds, seconds],
        [time.nanoseconds, nanoseconds],
      ];

export const matchesCreate = (found: Attributes, set: SetAttributes): boolean =>
  found.type === fileType.regular && found.size === (set.size ?? 0) && hasTimesOf(found, set);

/**
 * Compares explicit times only. They distinguish a file that this client created from one that another client created meanwhile.
 */
export const hasTimesOf = (found: Attributes, { atime, mtime }: SetAttributes): boolean =>
  [...timePairs(atime, found.atime, found.atimeNs), ...timePairs(mtime, found.mtime, found.mtimeNs)].every(
    ([wanted, is]) => wanted === is,
  );
