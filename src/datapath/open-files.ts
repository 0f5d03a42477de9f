import type { Request } from '#wire/fuse/operations.ts';
import type { Caller, Rights } from './identity.ts';

/**
 * What is to be known of an open file lies in its number itself, so that a successor knows it too: who opened it, and whether
 * to write. Below them 20 bits that tell open files of one user apart.
 */
export interface OpenFiles {
  open(uid: number, writes: boolean): number;
}

const users = 0x1_0000_0000;
const serials = 0x10_0000;

export function createOpenFiles(): OpenFiles {
  let serial = Math.floor(Math.random() * serials);
  return {
    open: (uid, writes) => {
      serial = (serial + 1) % serials;
      return uid + users * (serial * 2 + (writes ? 1 : 0));
    },
  };
}

export const writes = (fh: number): boolean => Math.floor(fh / users) % 2 === 1;

/**
 * Whoever opened a file may use it, whoever has it now. The kernel's own writes (from memory maps) come from nobody: then the
 * file's group stands for that of whoever opened it.
 */
export function opener(fh: number, request: Request, about: Rights | undefined): Caller {
  const uid = fh % users;
  return request.uid === uid ? request : { uid, gid: about?.gid ?? request.gid };
}
