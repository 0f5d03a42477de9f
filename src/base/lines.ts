/** Joins chunks into lines. */
export interface Lines {
  /** The lines that end in this chunk, trimmed, without empty ones. */
  taken(chunk: Uint8Array): readonly string[];
  /** The text after the last newline: an unterminated or truncated line. */
  rest(): string;
}

/** Throws if a line is longer than `maxBytes`. */
export function createLines(maxBytes: number, tooLong: (why: string) => Error): Lines {
  let begun: Uint8Array[] = [];
  let length = 0;
  const take = (piece: Uint8Array): void => {
    length += piece.length;
    if (length > maxBytes) throw tooLong(`a line is longer than ${maxBytes} bytes`);
    if (piece.length > 0) begun.push(piece);
  };
  const rest = (): string => {
    const line = Buffer.concat(begun).toString('utf8').trim();
    begun = [];
    length = 0;
    return line;
  };
  return {
    taken: (chunk) => {
      const lines: string[] = [];
      let from = 0;
      for (let to = chunk.indexOf(0x0a); to !== -1; to = chunk.indexOf(0x0a, from)) {
        take(chunk.subarray(from, to));
        from = to + 1;
        const line = rest();
        if (line !== '') lines.push(line);
      }
      take(chunk.subarray(from));
      return lines;
    },
    rest,
  };
}

/** Yields the lines of a stream. The last one need not be terminated. */
export async function* linesIn(
  stream: AsyncIterable<Uint8Array>,
  maxBytes: number,
  tooLong: (why: string) => Error,
): AsyncGenerator<string, void, undefined> {
  const lines = createLines(maxBytes, tooLong);
  for await (const chunk of stream) yield* lines.taken(chunk);
  const rest = lines.rest();
  if (rest !== '') yield rest;
}
