import { parseAst } from 'rolldown/parseAst';

/** A node of the syntax tree. TypeScript 7 has no API, so this uses the bundler's parser. */
export interface Syntax {
  readonly type: string;
  readonly start: number;
  readonly end: number;
  readonly [key: string]: unknown;
}

export interface Source {
  readonly path: string;
  readonly text: string;
  readonly program: Syntax;
}

export function parse(path: string, text: string): Source {
  return { path, text, program: parseAst(text, { lang: 'ts' }) as unknown as Syntax };
}

const isSyntax = (value: unknown): value is Syntax =>
  typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';

export const partsOf = (value: unknown): readonly Syntax[] => (Array.isArray(value) ? value.filter(isSyntax) : []);
export const partOf = (value: unknown): Syntax | undefined => (isSyntax(value) ? value : undefined);

/** Every descendant with its ancestors, nearest first. */
export function* walk(
  part: Syntax,
  around: readonly Syntax[] = [],
): Generator<readonly [part: Syntax, around: readonly Syntax[]]> {
  yield [part, around];
  for (const value of Object.values(part)) {
    for (const child of Array.isArray(value) ? value : [value])
      if (isSyntax(child)) yield* walk(child, [part, ...around]);
  }
}

export const nameOf = (part: Syntax | undefined): string | undefined =>
  part?.type === 'Identifier' && typeof part['name'] === 'string' ? part['name'] : undefined;

/** The values of an object's plain keys. */
export function propertiesOf(object: Syntax): ReadonlyMap<string, Syntax> {
  const found = new Map<string, Syntax>();
  for (const property of partsOf(object['properties'])) {
    const key = nameOf(partOf(property['key']));
    const value = partOf(property['value']);
    if (property.type === 'Property' && key !== undefined && value !== undefined) found.set(key, value);
  }
  return found;
}

/** The value of a plain string literal; undefined for other expressions. */
export const literal = (part: Syntax | undefined): string | undefined =>
  part?.type === 'Literal' && typeof part['value'] === 'string' ? part['value'] : undefined;

/** What the caller knows when it renders an expression. */
export interface Known {
  /** The assumed results of conditions, by their source text. */
  readonly ways: ReadonlyMap<string, boolean>;
  /** The callers' arguments, by parameter name. */
  readonly given: ReadonlyMap<string, string>;
}

export const testOf = (source: Source, part: Syntax): string => {
  const test = partOf(part['test']);
  return test === undefined ? '' : source.text.slice(test.start, test.end);
};

/** The text of an expression as a reader sees it, with values of run time in <angle brackets>. */
export function rendered(source: Source, part: Syntax | undefined, known: Known): string {
  const of = (value: unknown): string => rendered(source, partOf(value), known);
  switch (part?.type) {
    case 'Literal':
      return String(part['value']);
    case 'TemplateLiteral': {
      const expressions = partsOf(part['expressions']);
      return partsOf(part['quasis'])
        .map((quasi, at) => cooked(quasi) + (at < expressions.length ? of(expressions[at]) : ''))
        .join('');
    }
    case 'BinaryExpression':
      return part['operator'] === '+' ? of(part['left']) + of(part['right']) : '<number>';
    case 'LogicalExpression':
      return either(of(part['left']), of(part['right']));
    case 'ConditionalExpression': {
      const way = known.ways.get(testOf(source, part));
      if (way === undefined) return either(of(part['consequent']), of(part['alternate']));
      return of(way ? part['consequent'] : part['alternate']);
    }
    case 'Identifier':
      return known.given.get(nameOf(part) ?? '') ?? `<${nameOf(part)}>`;
    case 'MemberExpression':
      return part['computed'] === true ? of(part['object']) : `<${nameOf(partOf(part['property']))}>`;
    case 'ChainExpression':
      return of(part['expression']);
    case 'CallExpression':
      return called(source, part, known);
    default:
      return '<…>';
  }
}

const cooked = (quasi: Syntax): string => {
  const value = quasi['value'];
  return typeof value === 'object' && value !== null && 'cooked' in value ? String(value.cooked) : '';
};

function either(one: string, other: string): string {
  if (one === other) return one;
  return one === '' || other === '' ? `[${one}${other}]` : `[${one}|${other}]`;
}

/** Renders `quoted(name)` with quotes. The result of any other function or method is rendered as its argument. */
function called(source: Source, call: Syntax, known: Known): string {
  const callee = partOf(call['callee']);
  const [first] = partsOf(call['arguments']);
  const owner = callee?.type === 'MemberExpression' ? partOf(callee['object']) : undefined;
  // In Math.round(x) and String.raw(x), the owner is not a value.
  if (owner !== undefined && !/^[A-Z]/.test(nameOf(owner) ?? '')) return rendered(source, owner, known);
  const inner = first === undefined ? `<${nameOf(callee) ?? '…'}>` : rendered(source, first, known);
  if (nameOf(callee) === 'dirname') return `<folder of ${inner.replaceAll(/[<>]/g, '')}>`;
  return nameOf(callee) === 'quoted' ? `'${inner}'` : inner;
}
