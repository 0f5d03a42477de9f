import { constants } from 'node:fs';
import { access, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock } from '#base/clock.ts';

export interface Finding {
  readonly check: string;
  /** `warn`: it works, but not everything or not well. */
  readonly ok: 'yes' | 'no' | 'warn';
  readonly detail: string;
  readonly fix?: string;
}

/** Where the checks look. */
export interface Look {
  readonly clock: Clock;
  /** For one question to one other program, in ms: less than a group of checks has. */
  readonly patience: number;
  /** `/`, or a folder with a proc, sys and dev of its own. */
  readonly root: string;
  /** As uname gives it. */
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

export type Check = (look: Look, signal: AbortSignal) => Promise<readonly Finding[]>;

export const below = (look: Look, path: string): string => join(look.root, path);

/** Undefined: it is not there, or must not be read. */
export async function textOf(look: Look, path: string): Promise<string | undefined> {
  return await readFile(below(look, path), 'utf8').then(
    (text) => text.trim(),
    () => undefined,
  );
}

export async function isThere(path: string, mode = constants.F_OK): Promise<boolean> {
  return await access(path, mode).then(
    () => true,
    () => false,
  );
}

export const yes = (check: string, detail: string): Finding => ({ check, ok: 'yes', detail });
export const warn = (check: string, detail: string, fix: string): Finding => ({ check, ok: 'warn', detail, fix });
export const no = (check: string, detail: string, fix: string): Finding => ({ check, ok: 'no', detail, fix });
