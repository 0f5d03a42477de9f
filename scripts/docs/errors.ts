import { errorCodes } from '#core/error-codes.ts';
import type { ErrorReason } from '#core/error-reasons/reason.ts';
import { errorReasons } from '#core/error-reasons.ts';
import { code, table } from './markdown.ts';
import {
  type Known,
  literal,
  nameOf,
  partOf,
  partsOf,
  propertiesOf,
  rendered,
  type Source,
  type Syntax,
  testOf,
  walk,
} from './syntax.ts';

/** One combination of code, reason, message and action that a user can get. */
export interface Failure {
  readonly reason: string;
  readonly code: string;
  readonly message: string;
  readonly action: string;
}

/** An object in the sources that describes an error. */
interface ErrorSite {
  readonly source: Source;
  readonly around: readonly Syntax[];
  readonly message: Syntax | undefined;
  /** The prefix that an enclosing error adds to the message. */
  readonly before: string;
  readonly code: Syntax | undefined;
  readonly reason: Syntax | undefined;
  readonly action: Syntax | undefined;
}

const functions = ['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression'];
const nothing: Known = { ways: new Map(), given: new Map() };
/** The limit for following callers of callers. */
const maxCallDepth = 3;

/** `new StowageError(message, …)` or `relayed(message, …)`. */
const makesError = (part: Syntax | undefined): boolean =>
  part?.type === 'NewExpression' || (part?.type === 'CallExpression' && nameOf(partOf(part['callee'])) === 'relayed');

/** Every object with a code, a reason and an action. Most are the second argument of `new StowageError`. */
function placesIn(source: Source): ErrorSite[] {
  const found: ErrorSite[] = [];
  for (const [part, around] of walk(source.program)) {
    if (part.type !== 'ObjectExpression') continue;
    const properties = propertiesOf(part);
    const [code, reason, action] = ['code', 'reason', 'action'].map((key) => properties.get(key));
    if (code === undefined || reason === undefined || action === undefined) continue;
    const made = makesError(around[0]) ? partsOf(around[0]?.['arguments'])[0] : undefined;
    const message = made ?? properties.get('message') ?? properties.get('why');
    const isWhy = message !== undefined && message === properties.get('why');
    // In `other ?? 'mine'`, the first operand has an error site of its own.
    const own = reason.type === 'LogicalExpression' ? partOf(reason['right']) : reason;
    found.push({ source, around, message, before: isWhy ? '<doing this> failed: ' : '', code, reason: own, action });
  }
  return found;
}

interface Wrapper {
  readonly name: string;
  readonly source: Source;
  readonly parameters: readonly { readonly name: string; readonly standard: Syntax | undefined }[];
}

/** The enclosing named function, if one of `parts` is a parameter of it. */
function wrapperOf(
  source: Source,
  around: readonly Syntax[],
  parts: readonly (Syntax | undefined)[],
): Wrapper | undefined {
  const at = around.findIndex((part) => functions.includes(part.type));
  const [outer, holder] = [around[at], around[at + 1]];
  if (outer === undefined) return undefined;
  const assigned = holder?.type === 'VariableDeclarator' ? nameOf(partOf(holder['id'])) : undefined;
  const name = nameOf(partOf(outer['id'])) ?? assigned;
  const parameters = partsOf(outer['params']).map((parameter) => {
    const standard = parameter.type === 'AssignmentPattern' ? partOf(parameter['right']) : undefined;
    return { name: nameOf(standard === undefined ? parameter : partOf(parameter['left'])) ?? '', standard };
  });
  const handedIn = parts.some((part) => parameters.some((parameter) => parameter.name === nameOf(part)));
  return name !== undefined && handedIn ? { name, source, parameters } : undefined;
}

/** Calls of the function in its own file and in files that import it. */
function* callsOf(
  { name, source: own }: Wrapper,
  sources: readonly Source[],
): Generator<readonly [Source, readonly Syntax[], readonly Syntax[]]> {
  const file = own.path.slice(own.path.lastIndexOf('/') + 1).replaceAll('.', '\\.');
  const imported = new RegExp(`import [^;]*\\b${name}\\b[^;]* from '[^']*/${file}'`);
  for (const source of sources) {
    if (source !== own && !imported.test(source.text)) continue;
    for (const [part, around] of walk(source.program)) {
      const isCall = part.type === 'CallExpression' && nameOf(partOf(part['callee'])) === name;
      if (isCall) yield [source, partsOf(part['arguments']), around];
    }
  }
}

/** For each caller, its arguments by parameter name. A function without callers gets one empty set. */
function callerArguments(wrapper: Wrapper | undefined, sources: readonly Source[], depth = 0): Known['given'][] {
  if (wrapper === undefined || depth > maxCallDepth) return [nothing.given];
  const found: Known['given'][] = [];
  for (const [source, handed, around] of callsOf(wrapper, sources)) {
    for (const given of callerArguments(wrapperOf(source, around, handed), sources, depth + 1)) {
      const texts = wrapper.parameters.flatMap(({ name, standard }, at): [string, string][] => {
        const part = handed[at] ?? standard;
        return part === undefined ? [] : [[name, rendered(source, part, { ...nothing, given })]];
      });
      found.push(new Map(texts));
    }
  }
  return found.length === 0 ? [nothing.given] : found;
}

/** Every combination of the conditions that decide the code or the reason. */
function conditionsOf({ source, code, reason }: ErrorSite): Known['ways'][] {
  const tests = new Set<string>();
  for (const decisive of [code, reason]) {
    for (const [part] of decisive === undefined ? [] : walk(decisive)) {
      if (part.type === 'ConditionalExpression') tests.add(testOf(source, part));
    }
  }
  return [...tests].reduce<Map<string, boolean>[]>(
    (all, test) => all.flatMap((ways) => [true, false].map((yes) => new Map([...ways, [test, yes]]))),
    [new Map()],
  );
}

const codeOfCause = '<that of the cause>';

/** For `const { code } = stowageError(cause)`, the code is the code of the cause. */
function isOfCause(code: Syntax | undefined, around: readonly Syntax[]): boolean {
  const name = nameOf(code);
  const declared = around
    .flatMap((part) => (part.type === 'BlockStatement' ? partsOf(part['body']) : []))
    .flatMap((part) => partsOf(part['declarations']));
  return declared.some((one) => {
    const [to, from] = [partOf(one['id']), partOf(one['init'])];
    const isFunnel = from?.type === 'CallExpression' && nameOf(partOf(from['callee'])) === 'stowageError';
    return isFunnel && to !== undefined && name !== undefined && propertiesOf(to).has(name);
  });
}

function failuresAt(place: ErrorSite, sources: readonly Source[]): Failure[] {
  const { source, around, message, code, reason, action } = place;
  const wrapper = wrapperOf(source, around, [message, code, reason, action]);
  return callerArguments(wrapper, sources).flatMap((given) =>
    conditionsOf(place).map((ways) => {
      const text = (part: Syntax | undefined): string => rendered(source, part, { ways, given });
      const named = isOfCause(code, around) ? codeOfCause : text(code);
      const found = { reason: text(reason), code: named, message: place.before + text(message), action: text(action) };
      if (message === undefined && isFailure(found))
        throw new Error(`${source.path}: ${found.reason} has no message that scripts/docs/errors.ts can find`);
      return found;
    }),
  );
}

const isReason = (text: string): boolean => /^[a-z][a-z0-9-]*$/.test(text);
const isFailure = ({ reason, code }: Failure): boolean => isReason(reason) && isCode(code);
const isCode = (text: string): boolean => text === codeOfCause || Object.hasOwn(errorCodes, text);

/** All errors in the sources. Throws for a reason that the analysis does not understand. */
export function failuresIn(sources: readonly Source[]): readonly Failure[] {
  const found = new Map<string, Failure>();
  for (const failure of sources.flatMap(placesIn).flatMap((place) => failuresAt(place, sources))) {
    if (isFailure(failure)) found.set(JSON.stringify(failure), failure);
  }
  const failures = [...found.values()].sort((a, b) => compare(a.reason, b.reason) || compare(a.message, b.message));
  refuseMissing(sources, failures);
  return failures;
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

/** Checks with a text search that the analysis has found every reason. */
function refuseMissing(sources: readonly Source[], failures: readonly Failure[]): void {
  const known = new Set(failures.map((failure) => failure.reason));
  const missed: string[] = [];
  for (const source of sources) {
    for (const [part] of walk(source.program)) {
      if (part.type !== 'ObjectExpression' || !propertiesOf(part).has('code')) continue;
      const reason = literal(propertiesOf(part).get('reason'));
      if (reason !== undefined && isReason(reason) && !known.has(reason)) missed.push(`${source.path}: ${reason}`);
    }
  }
  if (missed.length > 0)
    throw new Error(`reasons that scripts/docs/errors.ts does not understand:\n${missed.join('\n')}`);
}

/** The table of reasons, with the messages and actions of each reason in the sources. */
export function errorPage(failures: readonly Failure[]): string {
  const cases = Map.groupBy(failures, (failure) => failure.reason);
  const codes = Object.entries(errorCodes).map(([name, { http, exit, retry, title, short }]) => [
    code(name),
    title,
    String(http),
    String(exit),
    retry ? 'yes' : 'no',
    short,
  ]);
  return [
    '# Errors',
    '',
    'Every error has a `code` (general: it decides what a program does next), a `reason` (specific: it identifies the case),',
    'a message and an action. The REST API sends them as [RFC 9457 problems](api.md); the command line prints message and',
    'action, and with `--json` the whole problem. Codes and reasons are stable, messages are not.',
    '',
    '## Codes',
    '',
    'Repeat: whether the same request can succeed later without any action. In short: the text for callers who are not',
    'administrators, if only administrators may read the full message.',
    '',
    ...table(['Code', 'Meaning', 'HTTP', 'Exit', 'Repeat', 'In short'], codes),
    '',
    '## Reasons',
    '',
    'Values are in `<angle brackets>`. Optional parts, and alternatives, are in `[square brackets]`.',
    '',
    ...reasons.flatMap(([reason, about]) => [
      `### ${reason}`,
      '',
      about.when,
      ...noteFor(about),
      '',
      ...(cases.get(reason) ?? []).flatMap(({ code: name, message, action }) => [
        `- ${code(name)}: ${code(message)}`,
        ...(action === '' ? [] : [`  <br>${escaped(action)}`]),
      ]),
      '',
    ]),
  ].join('\n');
}

const reasons = Object.entries<ErrorReason>(errorReasons).sort(([a], [b]) => compare(a, b));

/** Says which readers see another text instead of the message, and which text. */
function noteFor({ readers, short, denial }: ErrorReason): readonly string[] {
  if (readers === 'everybody') return [];
  if (readers === 'local') return ['Only the command line, or a server that fails to start, shows this error.'];
  if (denial !== undefined)
    return ['The full message is for administrators; others read that the store denies access.'];
  if (short !== undefined) return [`The full message is for administrators; others read: ${short}.`];
  return ['The full message is for administrators.'];
}

const escaped = (text: string): string => text.replaceAll('<', '&lt;').replaceAll(/([*_|])/g, '\\$1');
