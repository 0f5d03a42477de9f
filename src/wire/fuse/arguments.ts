import { fsyncFlag, lockFlag, setattrField } from './abi.ts';
import { bigU64, fileOffset, type Message, readName, u32, u64 } from './message.ts';
import type { LockRequest, SetAttr } from './operations.ts';

export function readSetattr(message: Message): SetAttr {
  const valid = u32(message, 0);
  const has = (field: keyof typeof setattrField): boolean => (valid & setattrField[field]) !== 0;
  const time = (now: boolean, seconds: number, nanoseconds: number) =>
    now ? 'now' : { seconds: u64(message, seconds), nanoseconds: u32(message, nanoseconds) };
  return {
    ...(has('fh') ? { fh: u64(message, 8) } : {}),
    ...(has('size') ? { size: fileOffset(message, 16) } : {}),
    ...(has('atime') ? { atime: time(has('atimeNow'), 32, 56) } : {}),
    ...(has('mtime') ? { mtime: time(has('mtimeNow'), 40, 60) } : {}),
    ...(has('mode') ? { mode: u32(message, 68) & 0o7777 } : {}),
    ...(has('uid') ? { uid: u32(message, 76) } : {}),
    ...(has('gid') ? { gid: u32(message, 80) } : {}),
  };
}

export const readFsync = (message: Message) => ({
  fh: u64(message, 0),
  dataOnly: (u32(message, 8) & fsyncFlag.dataOnly) !== 0,
});

export const readLock = (message: Message): LockRequest => ({
  fh: u64(message, 0),
  owner: bigU64(message, 8),
  lock: { start: bigU64(message, 16), end: bigU64(message, 24), type: u32(message, 32), pid: u32(message, 36) },
  isFlock: (u32(message, 40) & lockFlag.flock) !== 0,
});

/** Reads two names; the second follows the NUL of the first. */
export function readTwoNames(message: Message, at: number): readonly [Buffer, Buffer] {
  const first = readName(message, at);
  return [first, readName(message, at + first.length + 1)];
}
