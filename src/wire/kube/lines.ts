import { linesIn } from '#base/lines.ts';
import { garbled } from './errors.ts';

/** What comes after the last line's end is the beginning of something that was cut off, and is left out. */
export async function* linesOf(
  stream: AsyncIterable<Uint8Array>,
  maxBytes: number,
  call: string,
): AsyncGenerator<string, void, undefined> {
  yield* linesIn(stream, maxBytes, (why) => garbled(call, why));
}

/** The error of the parser is not kept: it quotes the text, which may be a Secret. */
export function parsed(text: string, call: string): unknown {
  const value = valueIn(text);
  if (value === undefined) throw garbled(call, 'the answer is not JSON');
  return value;
}

function valueIn(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
