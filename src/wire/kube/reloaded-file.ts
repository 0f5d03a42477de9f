import { readFile } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { misconfigured } from './errors.ts';

/** A text that may be another one later. What it was may have been refused: then it is looked at anew. */
export type ReloadableText = (isRefused: boolean) => Promise<string>;

export const fixedText =
  (text: string): ReloadableText =>
  () =>
    Promise.resolve(text);

/** Long before what it holds expires, and not for every call. */
const reloadMs = 5_000;
const maxBytes = 1 << 20;

/** Read anew now and then. While it cannot be read, what was read last counts: it may be in the middle of being replaced. */
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
