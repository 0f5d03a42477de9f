import { expect, test } from 'vitest';
import { StowageError } from './errors.ts';
import { isNameTemplate, nameFromTemplate } from './name-template.ts';

const templateError = (message: string): StowageError =>
  new StowageError(message, { code: 'invalid', reason: 'name-invalid', action: 'y' });
const claim: Readonly<Record<string, string>> = { namespace: 'shop', name: 'cart', uid: 'u', 'label:a:b': 'red' };
const nameBy = (template: string): string =>
  nameFromTemplate(template, {
    value: ({ text }) => claim[text],
    missing: ({ kind, key }) => templateError(`missing ${kind} ${key}`),
    unfit: (name) => templateError(`unfit ${name}`),
  });

test.each([
  ['{namespace}-{name}', true],
  ['{uid}', true],
  ['fixed', true],
  ['{label:app.example/team}.{annotation:a:b}', true],
  ['{x}', false],
  ['{label:}', false],
  ['{name', false],
  ['name}', false],
  ['{{name}}', false],
])('the template %s is valid: %s', (template, isOne) => {
  expect(isNameTemplate(template)).toBe(isOne);
});

test('builds a name from values of the claim', () => {
  expect(nameBy('{namespace}-{name}_{uid}.x')).toBe('shop-cart_u.x');
  expect(nameBy('{label:a:b}')).toBe('red');
});

test('throws if the claim lacks a value or the result is not a valid name', () => {
  expect(() => nameBy('{annotation:team:x}')).toThrow('missing annotation team:x');
  expect(() => nameBy('..{name}')).toThrow('unfit ..cart');
  expect(() => nameBy('{name')).toThrow('unfit {name');
});
