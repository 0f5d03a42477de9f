import { garbled } from './errors.ts';

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
