import { linesIn } from '#base/lines.ts';
import { garbled } from './errors.ts';

/** The last line may have no end. */
export async function* linesOf(
  stream: AsyncIterable<Uint8Array>,
  maxBytes: number,
  call: string,
): AsyncGenerator<string, void, undefined> {
  const rest = yield* linesIn(stream, maxBytes, (why) => garbled(call, why));
  if (rest !== '') yield rest;
}

export function parsed(text: string, call: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw garbled(call, 'the answer is not JSON', cause);
  }
}
