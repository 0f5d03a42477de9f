import { nameOf, parse, partOf, partsOf, type Syntax } from '../docs/syntax.ts';

/** One change of a source file. */
export interface Change {
  /** The offset from the start of the file, in UTF-16 units. */
  readonly offset: number;
  readonly original: string;
  readonly replacement: string;
}

const swaps: Readonly<Record<string, string>> = {
  '===': '!==',
  '!==': '===',
  '<': '<=',
  '<=': '<',
  '>': '>=',
  '>=': '>',
  '+': '-',
  '-': '+',
  '&&': '||',
  '||': '&&',
};

/** Properties that contain text for people. */
const textProperties = new Set(['action', 'description', 'detail', 'help', 'message', 'summary', 'title']);

/** TypeScript syntax around a value. The value itself still runs. */
const valueWrappers = new Set(['TSAsExpression', 'TSInstantiationExpression', 'TSNonNullExpression']);

/** Every change that the operators allow, in the order of the text and without duplicates. */
export function changesOf(path: string, text: string): readonly Change[] {
  const found = new Map<string, Change>();
  for (const change of changesBelow(parse(path, text).program, text)) {
    const { offset, original, replacement } = change;
    if (original !== replacement) found.set(`${offset} ${original.length} ${replacement}`, change);
  }
  return [...found.values()].toSorted((a, b) => a.offset - b.offset || a.original.length - b.original.length);
}

function* changesBelow(part: Syntax, text: string): Generator<Change> {
  if (isSkipped(part)) return;
  for (const [start, end, replacement] of changesAt(part, text)) {
    yield { offset: start, original: text.slice(start, end), replacement };
  }
  for (const child of childrenOf(part)) yield* changesBelow(child, text);
}

function childrenOf(part: Syntax): readonly Syntax[] {
  if (valueWrappers.has(part.type)) return partsOf([part['expression']]);
  const isPlainKey = part.type === 'Property' && part['computed'] !== true;
  return Object.entries(part).flatMap(([name, value]) =>
    isPlainKey && name === 'key' ? [] : partsOf(Array.isArray(value) ? value : [value]),
  );
}

function isSkipped(part: Syntax): boolean {
  switch (part.type) {
    case 'ImportDeclaration':
    case 'ExportAllDeclaration':
    case 'ThrowStatement':
      return true;
    case 'NewExpression':
      return nameOf(partOf(part['callee']))?.endsWith('Error') === true;
    case 'CallExpression':
      return isLogCall(part);
    case 'ExpressionStatement':
      return partsOf([part['expression']]).some((inner) => isLogCall(callIn(inner)));
    case 'Property':
      return part['computed'] !== true && textProperties.has(nameOf(partOf(part['key'])) ?? '');
    default:
      // Types, interfaces and `satisfies never`. The parser's names for all of them begin with TS.
      return part.type.startsWith('TS') && !valueWrappers.has(part.type) && !isOtherSatisfies(part);
  }
}

const isOtherSatisfies = (part: Syntax): boolean =>
  part.type === 'TSSatisfiesExpression' && partOf(part['typeAnnotation'])?.type !== 'TSNeverKeyword';

/** Whether the call is `log.warn(…)`, `scope.log.info(…)` or `console.log(…)`. */
function isLogCall(call: Syntax | undefined): boolean {
  const callee = call?.type === 'CallExpression' ? partOf(call['callee']) : undefined;
  const owner = callee?.type === 'MemberExpression' ? partOf(callee['object']) : undefined;
  const name = nameOf(owner?.type === 'MemberExpression' ? partOf(owner['property']) : owner);
  return name === 'log' || name === 'console';
}

/** The call in `f()`, `await f()` and `a?.f()`. */
function callIn(expression: Syntax | undefined): Syntax | undefined {
  if (expression?.type === 'CallExpression') return expression;
  if (expression?.type === 'AwaitExpression') return callIn(partOf(expression['argument']));
  return expression?.type === 'ChainExpression' ? callIn(partOf(expression['expression'])) : undefined;
}

type Replacement = readonly [start: number, end: number, replacement: string];

function changesAt(part: Syntax, text: string): readonly Replacement[] {
  switch (part.type) {
    case 'BinaryExpression':
    case 'LogicalExpression':
      return swapChanges(part, text);
    case 'IfStatement':
    case 'ConditionalExpression':
    case 'WhileStatement':
    case 'DoWhileStatement':
      return negationChanges(partOf(part['test']), text);
    case 'UnaryExpression':
      return part['operator'] === '!' ? [[part.start, part.start + 1, '']] : [];
    case 'Literal':
      return literalChanges(part, part['value']);
    case 'ExpressionStatement':
      return removalChanges(part);
    case 'ReturnStatement':
      return undefinedChanges(partOf(part['argument']));
    case 'ArrowFunctionExpression':
      return part['expression'] === true ? undefinedChanges(partOf(part['body'])) : [];
    default:
      return [];
  }
}

function swapChanges(part: Syntax, text: string): readonly Replacement[] {
  const operator = String(part['operator']);
  const replacement = swaps[operator];
  const [left, right] = [partOf(part['left']), partOf(part['right'])];
  if (replacement === undefined || left === undefined || right === undefined) return [];
  // A concatenation of texts is a text.
  if (operator === '+' && [left, right].some(isText)) return [];
  const between = text
    .slice(left.end, right.start)
    .replaceAll(/\/\*.*?\*\/|\/\/.*/gs, (comment) => ' '.repeat(comment.length));
  const start = left.end + between.indexOf(operator);
  return [[start, start + operator.length, replacement]];
}

function isText(part: Syntax): boolean {
  if (part.type === 'TemplateLiteral') return true;
  if (part.type === 'BinaryExpression') return partsOf([part['left'], part['right']]).some(isText);
  return part.type === 'Literal' && typeof part['value'] === 'string';
}

/** Leaves out conditions that another operator changes in the same way: `!x`, `a === b`, `true`. */
function negationChanges(test: Syntax | undefined, text: string): readonly Replacement[] {
  if (test === undefined || test.type === 'Literal') return [];
  if (['!', '===', '!=='].includes(String(test['operator']))) return [];
  return [[test.start, test.end, `!(${text.slice(test.start, test.end)})`]];
}

function literalChanges({ start, end }: Syntax, value: unknown): readonly Replacement[] {
  if (typeof value === 'boolean') return [[start, end, String(!value)]];
  return typeof value === 'number' && value + 1 !== value ? [[start, end, String(value + 1)]] : [];
}

function removalChanges(statement: Syntax): readonly Replacement[] {
  const call = callIn(partOf(statement['expression']));
  if (call === undefined || partOf(call['callee'])?.type === 'Super') return [];
  return [[statement.start, statement.end, ';']];
}

function undefinedChanges(returned: Syntax | undefined): readonly Replacement[] {
  if (returned === undefined || nameOf(returned) === 'undefined' || isSkipped(returned)) return [];
  return [[returned.start, returned.end, 'undefined']];
}
