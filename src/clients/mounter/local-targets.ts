import { closeSync, lstatSync, mkdirSync, opendirSync, openSync, rmdirSync, unlinkSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import type { Access } from '#core/model.ts';
import type { HeldPath } from './held-path.ts';
import type { HoldLocal } from './hold-local.ts';
import type { MountTable } from './mountinfo.ts';

/** Synchronous operations for the simple cases of targets on the disk of Stowage's records. Everything else is left to the slow path. */
export interface LocalTargets {
  inspect(
    target: string,
    access: Access,
    table: MountTable,
    isFree: (path: string) => boolean,
  ): { readonly target: string; readonly existed: boolean } | undefined;
  /** Returns the path if it is no symbolic link and nothing is mounted there. */
  locate(path: string, table: MountTable): string | undefined;
  /** False: the caller has to use the slow path. */
  create(target: string, access: Access, table: MountTable): boolean;
  remove(target: string, table: MountTable): boolean;
}

export function createLocalTargets(holdLocal: HoldLocal): LocalTargets {
  /** Calls `work` with the target's path inside its opened parent folder. Undefined: something is mounted there, or an operation failed. */
  function inParent<T>(
    target: string,
    table: MountTable,
    work: (childPath: string, parent: HeldPath) => T | undefined,
  ): T | undefined {
    if (target === '/' || table.mountAt(target) !== undefined) return undefined;
    const parent = holdLocal(dirname(target), table);
    if (parent === undefined) return undefined;
    try {
      return work(`${parent.procPath}/${basename(target)}`, parent);
    } catch {
      return undefined;
    } finally {
      closeSync(parent.fd);
    }
  }

  return {
    inspect: (target, access, table, isFree) =>
      inParent(target, table, (childPath, parent) => {
        if (!parent.stats.isDirectory() || !isFree(target)) return undefined;
        const found = lstatSync(childPath, { throwIfNoEntry: false });
        if (found === undefined) return { target, existed: false };
        const isUsable =
          access === 'filesystem' ? found.isDirectory() && isEmpty(childPath) : found.isFile() && found.size === 0;
        return isUsable ? { target, existed: true } : undefined;
      }),
    locate: (path, table) =>
      inParent(path, table, (childPath) =>
        lstatSync(childPath, { throwIfNoEntry: false })?.isSymbolicLink() === true ? undefined : path,
      ),
    create: (target, access, table) =>
      inParent(target, table, (childPath) => {
        if (access === 'filesystem') mkdirSync(childPath);
        else closeSync(openSync(childPath, 'wx'));
        return true;
      }) === true,
    remove: (target, table) =>
      inParent(target, table, (childPath) => {
        const found = lstatSync(childPath);
        if (found.isDirectory()) rmdirSync(childPath);
        else if (found.isFile() && found.size === 0) unlinkSync(childPath);
        else return undefined;
        return true;
      }) === true,
  };
}

function isEmpty(folder: string): boolean {
  const entries = opendirSync(folder);
  try {
    return entries.readSync() === null;
  } finally {
    entries.closeSync();
  }
}
