import { errnoOf, isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';

export type FileType = 'directory' | 'file' | 'link' | 'other';

export interface FileInfo {
  readonly type: FileType;
  /** When it was made, in ms, or the best that is known of it. */
  readonly createdAt: number;
  /** When its name or attributes last changed, by the clock of whoever keeps it. */
  readonly changedAt: number;
}

export interface Entry {
  readonly name: string;
  readonly type: FileType;
  /** Another one after every change, where that is known without asking. */
  readonly mark?: string;
  /** An empty file, where that is known without asking. */
  readonly isEmpty?: boolean;
}

/** What could not be removed. */
export interface Unremovable {
  readonly name: string;
  readonly why: string;
}

export interface Scanned {
  readonly bytes: bigint;
  readonly files: bigint;
  readonly complete: boolean;
}

/**
 * What a file store needs of the file system below it: this machine's, or that of a server. Errors carry the system's code
 * (`ENOENT`), wherever they come from. No call follows a symbolic link at the end of its path.
 */
export interface Files {
  /** Undefined: it is not there. */
  lstat(path: string): Promise<FileInfo | undefined>;
  names(folder: string): Promise<readonly string[]>;
  list(folder: string): Promise<readonly Entry[]>;
  /** Throws UnfitFile for what is no plain file, or a longer one. */
  read(path: string, limit: number): Promise<Buffer>;
  /** Exclusively (`EEXIST`), durably, and for nobody else to read. */
  writeNew(path: string, text: string): Promise<void>;
  /** The same unless something is at `beside`. What that path holds is known before the file has its text. */
  writeNewUnless(beside: string, path: string, text: string): Promise<'written' | 'one of them is there'>;
  /** Exclusively (`EEXIST`). */
  newFolder(path: string, mode: number): Promise<void>;
  /** Already there is success. */
  makeFolder(path: string, mode?: number): Promise<void>;
  /** False: `from` was not there. */
  rename(from: string, to: string): Promise<boolean>;
  /** False: it was not there. */
  unlink(path: string): Promise<boolean>;
  /** Only an empty one. */
  rmdir(path: string): Promise<void>;
  /** With all that is in it. Absent is success. Only for what nobody else can change. */
  removeAll(path: string): Promise<void>;
  /** Removes what lies in a folder that is ours, while others may still be changing the trees inside it. */
  emptyFolder(folder: string, scope: Scope): Promise<readonly Unremovable[]>;
  /** What a tree occupies, as du counts it, while its users may be changing it. */
  scan(top: string, signal: AbortSignal): Promise<Scanned>;
  /** Makes every change of that folder so far durable. */
  sync(folder: string): Promise<void>;
}

/** There, but nothing that can be read as a record. Its message completes "… cannot be read: ". */
export class UnsuitableFile extends Error {}

/** Somebody said no. Anything else is no answer: what was asked for may happen yet. */
export const isDefiniteFailure = (thrown: unknown): boolean =>
  errnoOf(thrown) !== undefined || thrown instanceof StowageError;
export const isFull = (thrown: unknown): boolean => isErrno(thrown, 'ENOSPC', 'EDQUOT');
