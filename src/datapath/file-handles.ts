import type { FileHandle } from '#wire/nfs3/structures.ts';

export const isSameHandle = (a: FileHandle, b: FileHandle): boolean =>
  a.length === b.length && a.every((byte, i) => byte === b[i]);
