import { nameOf, partOf, partsOf, rendered, type Source, type Syntax, walk } from '../../../scripts/docs/syntax.ts';

/** The keys that the program uses in the table `settings`. `<>` stands for values that are inserted at run time. */
export function settingsIn(sources: readonly Source[]): ReadonlySet<string> {
  const keys = new Set<string>();
  for (const source of sources) {
    for (const [part] of walk(source.program)) {
      const key = keyOf(part);
      const text = key && keyText(source, key);
      if (text !== undefined) keys.add(text);
    }
  }
  return keys;
}

/** The expression of the key in `settings.get(key)` or `settings.set(key, value)`. */
function keyOf(part: Syntax): Syntax | undefined {
  const callee = part.type === 'CallExpression' ? partOf(part['callee']) : undefined;
  if (callee?.type !== 'MemberExpression') return undefined;
  const owner = partOf(callee['object']);
  const ownerName = nameOf(owner) ?? nameOf(partOf(owner?.['property']));
  const verb = nameOf(partOf(callee['property']));
  return ownerName === 'settings' && (verb === 'get' || verb === 'set') ? partsOf(part['arguments'])[0] : undefined;
}

/** Undefined: the key is a parameter. The search finds its value at the call of that function. */
function keyText(source: Source, key: Syntax): string | undefined {
  const isText = key.type === 'Literal' || key.type === 'TemplateLiteral';
  if (isText) return rendered(source, key, { ways: new Map(), given: new Map() }).replaceAll(/<[^>]*>/g, '<>');
  const name = nameOf(key.type === 'CallExpression' ? partOf(key['callee']) : key);
  for (const [part] of walk(source.program)) {
    if (part.type !== 'VariableDeclarator' || nameOf(partOf(part['id'])) !== name) continue;
    const value = partOf(part['init']);
    const inner = value?.type === 'ArrowFunctionExpression' ? partOf(value['body']) : value;
    return inner && keyText(source, inner);
  }
  return undefined;
}
