import { garbled } from './errors.ts';

/**
 * The lines of a stream as they come, each bounded in length. What comes after the last line's end is the beginning of
 * something that was cut off, and is left out.
 */
export async function* linesOf(
  stream: AsyncIterable<Uint8Array>,
  maxBytes: number,
  call: string,
): AsyncGenerator<string, void, undefined> {
  let begun: Uint8Array[] = [];
  let length = 0;
  const take = (piece: Uint8Array): void => {
    length += piece.length;
    if (length > maxBytes) throw garbled(call, `a line is longer than ${maxBytes} bytes`);
    if (piece.length > 0) begun.push(piece);
  };
  for await (const chunk of stream) {
    let from = 0;
    for (let to = chunk.indexOf(0x0a); to !== -1; to = chunk.indexOf(0x0a, from)) {
      take(chunk.subarray(from, to));
      const line = Buffer.concat(begun).toString('utf8').trim();
      begun = [];
      length = 0;
      from = to + 1;
      if (line !== '') yield line;
    }
    take(chunk.subarray(from));
  }
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
