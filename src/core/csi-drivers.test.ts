import { expect, test } from 'vitest';
import { driverFor, driverNamed, drivers } from './csi-drivers.ts';
import type { Placement } from './placement.ts';

test.each<[Placement | undefined, string]>([
  ['node', 'local.stowage.dev'],
  ['anywhere', 'file.stowage.dev'],
  ['mount-worker', 'file.stowage.dev'],
  // The StorageClass of an invalid Store object, or of one from a newer Stowage, still names this driver.
  [undefined, 'file.stowage.dev'],
])('a store with placement %s belongs to driver %s', (placement, name) => {
  expect(driverFor(placement).name).toBe(name);
  expect(drivers).toContain(driverFor(placement));
});

test('finds the drivers of Stowage by name, and no other drivers', () => {
  expect(drivers.map(({ name }) => driverNamed(name))).toEqual(drivers);
  for (const name of ['csi.example.com', '', undefined]) expect(driverNamed(name)).toBeUndefined();
});
