import { garbled } from './errors.ts';

/** The lines of a stream as they come, each bounded in length. */
export async function* linesOf(
  stream: AsyncIterable<Uint8Array>,
  maxBytes: number,
  call: string,
): AsyncGenerator<string, void, undefined> {
  let begun: Buffer[] = [];
  let length = 0;
  const take = (piece: Uint8Array): void => {
    length += piece.length;
    if (length > maxBytes) throw garbled(call, `a line is longer than ${maxBytes} bytes`);
    begun.push(Buffer.from(piece));
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
  const rest = Buffer.concat(begun).toString('utf8').trim();
  if (rest !== '') yield rest;
}

export function parsed(text: string, call: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw garbled(call, 'the answer is not JSON', cause);
  }
}
