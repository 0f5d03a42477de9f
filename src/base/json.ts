/** The parser's error is not kept as the cause: it quotes the text, which may hold a secret. */
export function parseJson(text: string, notJson: (why: string) => Error): unknown {
  const found = jsonIn(text);
  if (found === undefined) throw notJson('the answer is not JSON');
  return found;
}

/** Undefined: the text is not JSON. */
export function jsonIn(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export type JsonObject = Readonly<Record<string, unknown>>;

export const isJsonObject = (value: unknown): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export const asJsonObject = (value: unknown): JsonObject | undefined => (isJsonObject(value) ? value : undefined);
