/** The parser's error is not kept: it quotes the text, which may hold a secret. */
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
