import { expect, test } from 'vitest';
import { specsOf, summaryOf, withEarlyEnd } from './suite.ts';

const spec = (text: string, State: string, Message = '') => ({
  ContainerHierarchyTexts: ['External Storage', 'a suite'],
  LeafNodeType: 'It',
  LeafNodeText: text,
  State,
  RunTime: 12_000_000_000,
  Failure: { Message },
});
const setUp = (State: string) => ({ ...spec('', State), ContainerHierarchyTexts: null, LeafNodeType: 'BeforeSuite' });
const read = (...SpecReports: readonly object[]) => specsOf(JSON.stringify([{ SpecReports }]));

test('a report counts the tests that ran and the tests that say why they skipped themselves', () => {
  const specs = read(
    spec('writes', 'passed'),
    spec('grows', 'timedout', 'too late\nby far'),
    spec('shrinks', 'skipped', 'nobody can'),
    spec('flies', 'skipped', 'nobody can'),
    spec('is not asked for', 'skipped'),
    setUp('passed'),
  );
  expect(summaryOf('file', specs)).toEqual([
    'file: 1 passed, 1 failed, 2 skipped',
    '✗ External Storage a suite grows (12 s)',
    '    too late',
    '    by far',
    '· 2 skipped: nobody can',
  ]);
});

test('a failure before any test is a failure', () => {
  expect(read(setUp('failed'))).toMatchObject([{ name: 'BeforeSuite', state: 'failed' }]);
});

test('a run that ended before all tests had run is a failure', () => {
  const specs = read(spec('writes', 'passed'), spec('had no turn', 'skipped'));
  expect(withEarlyEnd(specs, 0)).toMatchObject([{ state: 'passed' }]);
  expect(withEarlyEnd(specs, 1)).toMatchObject([{ state: 'passed' }, { state: 'failed', why: 'it ended with 1' }]);
});
