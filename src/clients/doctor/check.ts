import { constants } from 'node:fs';
import { access, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock } from '#base/clock.ts';

export interface Finding {
  readonly check: string;
  /** `warn`: Stowage works, but not everything does, or not well. */
  readonly ok: 'yes' | 'no' | 'warn';
  readonly detail: string;
  readonly fix?: string;
}

/** What the checks examine. */
export interface CheckContext {
  readonly clock: Clock;
  /** The deadline in ms for a request to another program: shorter than that of a group of checks. */
  readonly timeoutMs: number;
  /** `/`, or a folder with a proc, sys and dev of its own. */
  readonly root: string;
  /** The kernel release, as in uname(2). */
  readonly release: string;
  readonly stateFolder: string;
  readonly engines: readonly Engine[];
  /** Folders with programs, as in PATH. */
  readonly path: string;
}

export interface Engine {
  readonly name: string;
  readonly socket: string;
}

export type Check = (context: CheckContext, signal: AbortSignal) => Promise<readonly Finding[]>;

export const pathInRoot = (context: CheckContext, path: string): string => join(context.root, path);

/** Undefined: the file does not exist, or cannot be read. */
export async function readTrimmed(context: CheckContext, path: string): Promise<string | undefined> {
  return await readFile(pathInRoot(context, path), 'utf8').then(
    (text) => text.trim(),
    () => undefined,
  );
}

export async function isAccessible(path: string, mode = constants.F_OK): Promise<boolean> {
  return await access(path, mode).then(
    () => true,
    () => false,
  );
}

export const yes = (check: string, detail: string): Finding => ({ check, ok: 'yes', detail });
export const warn = (check: string, detail: string, fix: string): Finding => ({ check, ok: 'warn', detail, fix });
export const no = (check: string, detail: string, fix: string): Finding => ({ check, ok: 'no', detail, fix });
