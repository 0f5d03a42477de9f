// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the strings are programs

import { expect, test } from 'vitest';
import { failuresIn } from './errors.ts';
import { parse } from './syntax.ts';

const failures = (...texts: readonly string[]) =>
  failuresIn(texts.map((text, at) => parse(`src/${'ab'[at]}.ts`, text))).map(
    ({ reason, code, message, action }) => `${code} ${reason}: ${message} -> ${action}`,
  );

test('values that are filled in at run time are shown in angle brackets', () => {
  const text =
    'throw new StowageError(`no ${quoted(name)} in ${volume.store}${why === undefined ? "" : `: ${why}`}`, ' +
    "{ code: 'not-found', reason: 'gone', action: `mkdir ${dirname(path)}` });";
  expect(failures(text)).toEqual(["not-found gone: no '<name>' in <store>[: <why>] -> mkdir <folder of path>"]);
});

test('a condition that decides the reason makes two entries with separate texts', () => {
  const text =
    "throw new StowageError(taken ? 'in use' : 'failed', " +
    "{ code: taken ? 'conflict' : 'internal', reason: taken ? 'a-b' : 'c-d', action: taken ? 'Stop it.' : 'Wait.' });";
  expect(failures(text)).toEqual(['conflict a-b: in use -> Stop it.', 'internal c-d: failed -> Wait.']);
});

test('the callers of a function that receives the text are found, also in other files', () => {
  const helper =
    "export const bad = (message: string, action: string, reason = 'plain') => " +
    "new StowageError(`oh: ${message}`, { code: 'invalid', reason, action });\nthrow bad('one', 'Do one.');";
  const caller = "import { bad } from './a.ts';\nthrow bad(`two ${x}`, 'Do two.', 'special');";
  expect(failures(helper, caller)).toEqual([
    'invalid plain: oh: one -> Do one.',
    'invalid special: oh: two <x> -> Do two.',
  ]);
});

test('a code that is taken from the cause is shown as such', () => {
  const text =
    'function told(e) { const { code, message } = stowageError(e.cause); ' +
    "return new StowageError(`${message}; it goes on`, { code, reason: 'still-running', action: 'Wait.' }); }";
  expect(failures(text)).toEqual(['<that of the cause> still-running: <message>; it goes on -> Wait.']);
  expect(() => failures(text.replace('stowageError(e.cause)', 'e'))).toThrow('src/a.ts: still-running');
});

test('an error that relays the code or the reason of another one is found', () => {
  const text =
    "const { code } = cause; throw relayed(`store '${name}' is closed`, " +
    "{ code: code === 'internal' ? 'denied' : code, reason: cause?.reason ?? 'closed', action: 'Wait.' });";
  expect(failures(text)).toEqual(["denied closed: store '<name>' is closed -> Wait."]);
});

test('a reason without a known code fails the generator', () => {
  const text = "throw fail({ code: codeOf(cause), reason: 'lost', action: 'Look.' });";
  expect(() => failures(text)).toThrow('src/a.ts: lost');
});

test('an unknown message fails the generator', () => {
  const text =
    "throw new StowageError('no such option', { ...{ code: 'invalid', reason: 'no-option', action: 'Omit the header.' } });";
  expect(() => failures(text)).toThrow('src/a.ts: no-option has no message');
});
