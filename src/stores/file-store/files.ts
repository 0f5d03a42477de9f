import { errnoOf, isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';

export type FileType = 'directory' | 'file' | 'link' | 'other';

export interface FileInfo {
  readonly type: FileType;
  /** Time of birth in ms, or the best approximation that the file system has. */
  readonly createdAt: number;
  /** ctime in ms, by the clock of the machine or server that has the files. */
  readonly changedAt: number;
}

export interface Entry {
  readonly name: string;
  readonly type: FileType;
  /** Differs after every change. Present if the listing has it without further calls. */
  readonly mark?: string;
  /** An empty file. Present if the listing has it without further calls. */
  readonly isEmpty?: boolean;
}

/** A file or folder that could not be removed. */
export interface Unremovable {
  readonly name: string;
  readonly why: string;
}

export interface ScanResult {
  readonly bytes: bigint;
  readonly files: bigint;
  readonly complete: boolean;
}

/**
 * The file system below a file store: this machine's or a server's. Errors carry the system's code (`ENOENT`) in both cases.
 * No call follows a symbolic link at the end of its path.
 */
export interface Files {
  /** Undefined: absent. */
  lstat(path: string): Promise<FileInfo | undefined>;
  names(folder: string): Promise<readonly string[]>;
  list(folder: string): Promise<readonly Entry[]>;
  /** Throws UnsuitableFile if it is not a plain file, or longer than `limit`. */
  read(path: string, limit: number): Promise<Buffer>;
  /** Creates the file exclusively (`EEXIST`), durably, and readable only by this user. */
  writeNew(path: string, text: string): Promise<void>;
  /** Like `writeNew`, unless something exists at `beside`. Checks that before it writes the text. 'exists': one of the two paths exists. */
  writeNewUnless(beside: string, path: string, text: string): Promise<'written' | 'exists'>;
  /** Creates the folder exclusively (`EEXIST`). */
  newFolder(path: string, mode: number): Promise<void>;
  /** Idempotent: succeeds if the folder exists. */
  makeFolder(path: string, mode?: number): Promise<void>;
  /** False: `from` does not exist. */
  rename(from: string, to: string): Promise<boolean>;
  /** False: absent. */
  unlink(path: string): Promise<boolean>;
  /** Only removes an empty folder. */
  rmdir(path: string): Promise<void>;
  /** Removes a tree. Idempotent: succeeds if it does not exist. Only for trees that no other program can change. */
  removeAll(path: string): Promise<void>;
  /** Empties a folder of Stowage, while containers may still be changing the trees inside it. */
  emptyFolder(folder: string, scope: Scope): Promise<readonly Unremovable[]>;
  /** The space that a tree occupies, as du counts it. Its users may be changing it at the same time. */
  scan(top: string, signal: AbortSignal): Promise<ScanResult>;
  /** Makes all previous changes of that folder durable. */
  sync(folder: string): Promise<void>;
}

/** The file exists, but is not a plain file of an allowed size. The message completes "… cannot be read: ". */
export class UnsuitableFile extends Error {}

/** The call certainly failed. After any other error (a timeout, a lost connection) the call may still take effect. */
export const isDefiniteFailure = (thrown: unknown): boolean =>
  errnoOf(thrown) !== undefined || thrown instanceof StowageError;
export const isFull = (thrown: unknown): boolean => isErrno(thrown, 'ENOSPC', 'EDQUOT');
