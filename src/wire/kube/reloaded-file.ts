import { readFile } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { misconfigured } from './errors.ts';

/** A text that may change. `isRefused`: the API server rejected the last value, so read it again. */
export type ReloadableText = (isRefused: boolean) => Promise<string>;

export const fixedText =
  (text: string): ReloadableText =>
  () =>
    Promise.resolve(text);

/** Often enough for expiring credentials, but not for every call. */
const reloadMs = 5_000;
const maxBytes = 1 << 20;

/**
 * Reads the file again from time to time. While it cannot be read, the last value stays valid: the file may be in the middle of
 * being replaced.
 */
export function createReloadedFile(path: string, clock: Clock): ReloadableText {
  let last: { readonly text: string; readonly at: number } | undefined;
  return async (isRefused) => {
    const now = clock.elapsed();
    if (last !== undefined && !isRefused && now - last.at < reloadMs) return last.text;
    try {
      const text = await readFile(path, 'utf8');
      if (text.length > maxBytes) throw misconfigured(`${path} is too large to be a credential`);
      last = { text, at: now };
    } catch (cause) {
      if (last === undefined) throw misconfigured(`${path} cannot be read`, cause);
    }
    return last.text;
  };
}
