import { constants } from 'node:fs';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations } from '#wire/fuse/operations.ts';

const writeFlags = constants.O_WRONLY | constants.O_RDWR | constants.O_TRUNC;

const changingOperations = [
  'mkdir',
  'mknod',
  'symlink',
  'link',
  'unlink',
  'rmdir',
  'rename',
  'setattr',
  'create',
  'write',
] as const;

/** Refuses changes with EROFS. */
export function readOnlyOperations(operations: Partial<Operations>): Partial<Operations> {
  const refuse = (): never => {
    throw new Errno('EROFS');
  };
  const { open } = operations;
  return {
    ...operations,
    ...Object.fromEntries(changingOperations.map((name) => [name, refuse])),
    open: (id, flags, request) => ((flags & writeFlags) === 0 ? open?.(id, flags, request) : undefined) ?? refuse(),
  };
}
