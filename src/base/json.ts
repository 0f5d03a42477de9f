/** The parser's error is not kept as the cause: it quotes the text, which may hold a secret. */
export function parseJson(text: string, notJson: (why: string) => Error): unknown {
  const found = valueIn(text);
  if (found === undefined) throw notJson('the answer is not JSON');
  return found;
}

function valueIn(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
