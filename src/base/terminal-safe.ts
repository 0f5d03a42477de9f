/** Names and paths in a text can hold what rearranges a terminal: control characters, and those that change the direction. */
export function harmless(text: string): string {
  return text.replaceAll(
    /[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (c) => `\\u{${c.charCodeAt(0).toString(16)}}`,
  );
}

const mostText = 4_096;

/** Of a text that another machine sent: no more than somebody reads. */
export const harmlessPart = (text: string): string => harmless(text.slice(0, mostText));
