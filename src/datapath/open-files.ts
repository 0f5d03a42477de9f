import type { Request } from '#wire/fuse/operations.ts';
import type { Caller, Rights } from './identity.ts';

/**
 * A file handle number encodes who opened the file and whether for writing, so that a successor knows it too. The 20
 * bits above the uid distinguish open files of one user.
 */
export interface OpenFiles {
  open(uid: number, writes: boolean): number;
}

const uidRange = 0x1_0000_0000;
const serialRange = 0x10_0000;

export function createOpenFiles(): OpenFiles {
  let serial = Math.floor(Math.random() * serialRange);
  return {
    open: (uid, writes) => {
      serial = (serial + 1) % serialRange;
      return uid + uidRange * (serial * 2 + (writes ? 1 : 0));
    },
  };
}

export const isOpenForWriting = (fh: number): boolean => Math.floor(fh / uidRange) % 2 === 1;

/**
 * An open file is used with its opener's identity, also by a process that inherited it. The kernel's own writes (from
 * memory maps) have no caller: then the file's group replaces that of the opener.
 */
export function openerOf(fh: number, request: Request, rights: Rights | undefined): Caller {
  const uid = fh % uidRange;
  return request.uid === uid ? request : { uid, gid: rights?.gid ?? request.gid };
}
