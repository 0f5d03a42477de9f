/** Joins chunks into lines. */
export interface Lines {
  /** The lines that end in this chunk, trimmed, without empty ones. */
  addChunk(chunk: Uint8Array): readonly string[];
  /** Returns and drops the text after the last newline: an unterminated or truncated line. */
  takeRest(): string;
}

/** Throws if a line is longer than `maxBytes`. */
export function createLines(maxBytes: number, tooLong: (why: string) => Error): Lines {
  let pieces: Uint8Array[] = [];
  let length = 0;
  const append = (piece: Uint8Array): void => {
    length += piece.length;
    if (length > maxBytes) throw tooLong(`a line is longer than ${maxBytes} bytes`);
    if (piece.length > 0) pieces.push(piece);
  };
  const takeRest = (): string => {
    const line = Buffer.concat(pieces).toString('utf8').trim();
    pieces = [];
    length = 0;
    return line;
  };
  return {
    addChunk: (chunk) => {
      const lines: string[] = [];
      let from = 0;
      for (let to = chunk.indexOf(0x0a); to !== -1; to = chunk.indexOf(0x0a, from)) {
        append(chunk.subarray(from, to));
        from = to + 1;
        const line = takeRest();
        if (line !== '') lines.push(line);
      }
      append(chunk.subarray(from));
      return lines;
    },
    takeRest,
  };
}

/** Yields the lines of a stream. The last one need not be terminated. */
export async function* linesIn(
  stream: AsyncIterable<Uint8Array>,
  maxBytes: number,
  tooLong: (why: string) => Error,
): AsyncGenerator<string, void, undefined> {
  const lines = createLines(maxBytes, tooLong);
  for await (const chunk of stream) yield* lines.addChunk(chunk);
  const rest = lines.takeRest();
  if (rest !== '') yield rest;
}
