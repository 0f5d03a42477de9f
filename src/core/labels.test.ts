import { expect, test } from 'vitest';
import { checkLabels, mergeLabels, ownLabel, withOwn } from './labels.ts';

const own = ownLabel('csi-name');

test('nobody sets a label of Stowage itself', () => {
  expect(() => checkLabels({ [own]: 'x' })).toThrow(`the label '${own}' is reserved`);
  expect(() => mergeLabels({}, { [own]: 'x' })).toThrow(`the label '${own}' is reserved`);
  expect(mergeLabels({ [own]: 'x', a: 'b' }, { [own]: null, a: 'c' })).toEqual({ [own]: 'x', a: 'c' });
});

test('what Stowage notes itself can be anything, and nothing in it harms a terminal', () => {
  expect(withOwn({ z: '1' }, { [own]: 'a\nb\x1b[31m' })).toEqual({ [own]: 'a b [31m', z: '1' });
  expect(withOwn({}, { [own]: 'x'.repeat(300) })[own]).toHaveLength(256);
  expect(() => withOwn({}, { mine: 'x' })).toThrow("mine is not a label of Stowage's own");
});

test('equal sets of labels are equal as text', () => {
  const one = withOwn(checkLabels({ b: '1', z: '2' }), { [own]: 'x' });
  const other = mergeLabels(withOwn({ z: '2' }, { [own]: 'x' }), { b: '1' });
  expect(JSON.stringify(other)).toBe(JSON.stringify(one));
});
