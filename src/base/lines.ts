/**
 * The lines of a stream as they come, without blanks around them and without empty ones, each bounded in length. Returns what came
 * after the last line's end: the last line, or the beginning of one that was cut off.
 */
export async function* linesIn(
  stream: AsyncIterable<Uint8Array>,
  maxBytes: number,
  tooLong: (why: string) => Error,
): AsyncGenerator<string, string, undefined> {
  let begun: Uint8Array[] = [];
  let length = 0;
  const take = (piece: Uint8Array): void => {
    length += piece.length;
    if (length > maxBytes) throw tooLong(`a line is longer than ${maxBytes} bytes`);
    if (piece.length > 0) begun.push(piece);
  };
  const taken = (): string => {
    const line = Buffer.concat(begun).toString('utf8').trim();
    begun = [];
    length = 0;
    return line;
  };
  for await (const chunk of stream) {
    let from = 0;
    for (let to = chunk.indexOf(0x0a); to !== -1; to = chunk.indexOf(0x0a, from)) {
      take(chunk.subarray(from, to));
      from = to + 1;
      const line = taken();
      if (line !== '') yield line;
    }
    take(chunk.subarray(from));
  }
  return taken();
}
