import { readFile } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { configError } from './errors.ts';

/** A text that may change. `isRefused`: the API server rejected the last value, so read it again. */
export type ReloadableText = (isRefused: boolean) => Promise<string>;

export const fixedText =
  (text: string): ReloadableText =>
  () =>
    Promise.resolve(text);

/** Often enough for expiring credentials, but not for every call. */
const reloadIntervalMs = 5_000;
const maxFileBytes = 1 << 20;

/**
 * Reads the file again from time to time. While it cannot be read, the last value stays valid: the file may be in the middle of
 * being replaced.
 */
export function createReloadedFile(path: string, clock: Clock): ReloadableText {
  let last: { readonly text: string; readonly readAt: number } | undefined;
  return async (isRefused) => {
    const now = clock.elapsed();
    if (last !== undefined && !isRefused && now - last.readAt < reloadIntervalMs) return last.text;
    try {
      const text = await readFile(path, 'utf8');
      if (text.length > maxFileBytes) throw configError(`${path} is too large to be a credential`);
      last = { text, readAt: now };
    } catch (cause) {
      if (last === undefined) throw configError(`${path} cannot be read`, cause);
    }
    return last.text;
  };
}
