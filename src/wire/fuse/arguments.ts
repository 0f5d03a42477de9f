import { fsyncFlag, lockFlag, setattrField } from './abi.ts';
import { big, type Message, number, offset, text, u32 } from './message.ts';
import type { LockRequest, SetAttr } from './operations.ts';

export function set(message: Message): SetAttr {
  const valid = u32(message, 0);
  const has = (field: keyof typeof setattrField): boolean => (valid & setattrField[field]) !== 0;
  const time = (now: boolean, seconds: number, nanoseconds: number) =>
    now ? 'now' : { seconds: number(message, seconds), nanoseconds: u32(message, nanoseconds) };
  return {
    ...(has('fh') ? { fh: number(message, 8) } : {}),
    ...(has('size') ? { size: offset(message, 16) } : {}),
    ...(has('atime') ? { atime: time(has('atimeNow'), 32, 56) } : {}),
    ...(has('mtime') ? { mtime: time(has('mtimeNow'), 40, 60) } : {}),
    ...(has('mode') ? { mode: u32(message, 68) & 0o7777 } : {}),
    ...(has('uid') ? { uid: u32(message, 76) } : {}),
    ...(has('gid') ? { gid: u32(message, 80) } : {}),
  };
}

export const sync = (message: Message) => ({
  fh: number(message, 0),
  dataOnly: (u32(message, 8) & fsyncFlag.dataOnly) !== 0,
});

export const lock = (message: Message): LockRequest => ({
  fh: number(message, 0),
  owner: big(message, 8),
  lock: { start: big(message, 16), end: big(message, 24), type: u32(message, 32), pid: u32(message, 36) },
  isFlock: (u32(message, 40) & lockFlag.flock) !== 0,
});

/** Two names, the second behind the NUL of the first. */
export function twoNames(message: Message, at: number): readonly [Buffer, Buffer] {
  const first = text(message, at);
  return [first, text(message, at + first.length + 1)];
}
