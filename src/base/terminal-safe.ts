/** Escapes control and bidirectional characters, with which names and paths could manipulate a terminal. */
export function terminalSafe(text: string): string {
  return text.replaceAll(
    /[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (c) => `\\u{${c.charCodeAt(0).toString(16)}}`,
  );
}

const maxExcerptChars = 4_096;

/** For text from another machine: also limits its length. */
export const terminalSafeExcerpt = (text: string): string => terminalSafe(text.slice(0, maxExcerptChars));
