import { formatSize } from '#base/size.ts';

const escapeCharacter = (c: string): string => {
  const code = c.codePointAt(0)?.toString(16) ?? '';
  return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, '0')}`;
};

/** Escapes control and format characters. Names can come from a disk that others write, and must not control the terminal. */
export function escapeControls(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, escapeCharacter);
}

/** Quotes the text for a shell if necessary. */
export const shellWord = (text: string): string =>
  /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

/** JSON for a terminal: also escapes DEL, C1 and direction marks, which JSON.stringify leaves as they are. */
export function terminalJson(value: unknown, indent?: number): string {
  return JSON.stringify(value, undefined, indent).replace(
    /[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    escapeCharacter,
  );
}

/** The age with one unit, such as `3d`. */
export function age(since: string, now: number): string {
  const seconds = Math.max(0, Math.floor((now - Date.parse(since)) / 1000));
  if (Number.isNaN(seconds)) return '?';
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 2 * 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 2 * 86_400) return `${Math.floor(seconds / 3600)}h`;
  if (seconds < 2 * 365 * 86_400) return `${Math.floor(seconds / 86_400)}d`;
  return `${Math.floor(seconds / (365 * 86_400))}y`;
}

/** `2026-11-15 08:30 UTC` */
export const date = (time: string): string => `${time.slice(0, 10)} ${time.slice(11, 16)} UTC`;

/** Older servers leave out some sizes. */
export function size(bytes: string | null | undefined): string {
  if (bytes === null || bytes === undefined) return '-';
  return /^[0-9]+$/.test(bytes) ? formatSize(BigInt(bytes)) : escapeControls(bytes);
}

export const labelList = (labels: Readonly<Record<string, string>>): string =>
  Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(',');

export const plural = (count: number, one: string, many = `${one}s`): string => `${count} ${count === 1 ? one : many}`;
