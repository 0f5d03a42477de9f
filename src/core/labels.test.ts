import { expect, test } from 'vitest';
import { checkLabels, mergeLabels, ownLabel, withOwnLabels } from './labels.ts';

const own = ownLabel('csi-name');

test('users cannot set reserved labels', () => {
  expect(() => checkLabels({ [own]: 'x' })).toThrow(`the label '${own}' is reserved`);
  expect(() => mergeLabels({}, { [own]: 'x' })).toThrow(`the label '${own}' is reserved`);
  expect(mergeLabels({ [own]: 'x', a: 'b' }, { [own]: null, a: 'c' })).toEqual({ [own]: 'x', a: 'c' });
});

test('values of reserved labels can be any text, without characters that could harm a terminal', () => {
  expect(withOwnLabels({ z: '1' }, { [own]: 'a\nb\x1b[31m' })).toEqual({ [own]: 'a b [31m', z: '1' });
  expect(withOwnLabels({}, { [own]: 'x'.repeat(300) })[own]).toHaveLength(256);
  expect(() => withOwnLabels({}, { mine: 'x' })).toThrow("mine is not a label of Stowage's own");
});

test('equal sets of labels have equal JSON', () => {
  const one = withOwnLabels(checkLabels({ b: '1', z: '2' }), { [own]: 'x' });
  const other = mergeLabels(withOwnLabels({ z: '2' }, { [own]: 'x' }), { b: '1' });
  expect(JSON.stringify(other)).toBe(JSON.stringify(one));
});
