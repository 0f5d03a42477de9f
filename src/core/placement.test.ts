import { expect, test } from 'vitest';
import { isOnNode, isShared, opensInController, type Placement, placementOf } from './placement.ts';

const placements: readonly Placement[] = ['node', 'anywhere', 'mount-worker'];
const kinds = new Map(placements.map((placement) => [`on-${placement}`, { placement }]));

test('the placement of a store follows from the scheme of its URI, and an unknown scheme has none', () => {
  expect(placements.map((placement) => placementOf(kinds, `on-${placement}://place`))).toEqual(placements);
  expect(placementOf(kinds, 'ceph://cluster/pool')).toBeUndefined();
  expect(placementOf(kinds, '')).toBeUndefined();
});

test.each<[Placement | undefined, boolean | undefined, boolean, boolean]>([
  ['node', false, true, false],
  ['anywhere', true, false, true],
  ['mount-worker', true, false, false],
  [undefined, undefined, false, false],
])('placement %s: shared %s, on a node %s, opened in the controller %s', (placement, shared, onNode, inController) => {
  expect(placement && isShared(placement)).toBe(shared);
  expect(isOnNode(placement)).toBe(onNode);
  expect(opensInController(placement)).toBe(inController);
});
