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
    isFree: (place: string) => boolean,
  ): { readonly target: string; readonly existed: boolean } | undefined;
  /** Returns the path if it is no symbolic link and nothing is mounted there. */
  locate(path: string, table: MountTable): string | undefined;
  /** True: done. */
  make(target: string, access: Access, table: MountTable): boolean;
  remove(target: string, table: MountTable): boolean;
}

export function createLocalTargets(near: HoldLocal): LocalTargets {
  /** Calls `work` with the target's path inside its opened parent folder. Undefined: something is mounted there, or an operation failed. */
  function within<T>(
    target: string,
    table: MountTable,
    work: (place: string, parent: HeldPath) => T | undefined,
  ): T | undefined {
    if (target === '/' || table.at(target) !== undefined) return undefined;
    const parent = near(dirname(target), table);
    if (parent === undefined) return undefined;
    try {
      return work(`${parent.through}/${basename(target)}`, parent);
    } catch {
      return undefined;
    } finally {
      closeSync(parent.fd);
    }
  }

  return {
    inspect: (target, access, table, isFree) =>
      within(target, table, (place, parent) => {
        if (!parent.stats.isDirectory() || !isFree(target)) return undefined;
        const found = lstatSync(place, { throwIfNoEntry: false });
        if (found === undefined) return { target, existed: false };
        const isFit =
          access === 'filesystem' ? found.isDirectory() && isEmpty(place) : found.isFile() && found.size === 0;
        return isFit ? { target, existed: true } : undefined;
      }),
    locate: (path, table) =>
      within(path, table, (place) =>
        lstatSync(place, { throwIfNoEntry: false })?.isSymbolicLink() === true ? undefined : path,
      ),
    make: (target, access, table) =>
      within(target, table, (place) => {
        if (access === 'filesystem') mkdirSync(place);
        else closeSync(openSync(place, 'wx'));
        return true;
      }) === true,
    remove: (target, table) =>
      within(target, table, (place) => {
        const found = lstatSync(place);
        if (found.isDirectory()) rmdirSync(place);
        else if (found.isFile() && found.size === 0) unlinkSync(place);
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
