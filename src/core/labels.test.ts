import { expect, test } from 'vitest';
import { checkLabels, mergeLabels, ownLabel, withOwnLabels } from './labels.ts';

const ownKey = ownLabel('csi-name');

test('users cannot set reserved labels', () => {
  expect(() => checkLabels({ [ownKey]: 'x' })).toThrow(`the label '${ownKey}' is reserved`);
  expect(() => mergeLabels({}, { [ownKey]: 'x' })).toThrow(`the label '${ownKey}' is reserved`);
  expect(mergeLabels({ [ownKey]: 'x', a: 'b' }, { [ownKey]: null, a: 'c' })).toEqual({ [ownKey]: 'x', a: 'c' });
});

test('values of reserved labels can be any text, without characters that could harm a terminal', () => {
  expect(withOwnLabels({ z: '1' }, { [ownKey]: 'a\nb\x1b[31m' })).toEqual({ [ownKey]: 'a b [31m', z: '1' });
  expect(withOwnLabels({}, { [ownKey]: 'x'.repeat(300) })[ownKey]).toHaveLength(256);
  expect(() => withOwnLabels({}, { mine: 'x' })).toThrow("mine is not a label of Stowage's own");
});

test('equal sets of labels have equal JSON', () => {
  const one = withOwnLabels(checkLabels({ b: '1', z: '2' }), { [ownKey]: 'x' });
  const other = mergeLabels(withOwnLabels({ z: '2' }, { [ownKey]: 'x' }), { b: '1' });
  expect(JSON.stringify(other)).toBe(JSON.stringify(one));
});
