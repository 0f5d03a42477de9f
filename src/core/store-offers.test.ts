import { expect, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import type { StoreName } from './model.ts';
import { storesOffering } from './store-offers.ts';
import { cannotEnforce } from './volume-errors.ts';

const kinds = new Map([createLocalStoreKind(), createNfsStoreKind()].map((kind) => [kind.scheme, kind]));

test('recommends the stores of every kind that offers what is needed', () => {
  expect(storesOffering('enforcement', kinds)).toBe(
    'a local store with layout=image, or an NFS store without client=host',
  );
  expect(storesOffering('blockVolumes', kinds)).toBe('a local store with layout=image');
  expect(storesOffering('singleUser', kinds)).toBe('an NFS store with squash=all');
});

test('recommends no store if no kind offers it', () => {
  expect(cannotEnforce('plain' as StoreName, kinds).action).toBe(
    'Use a local store with layout=image, or an NFS store without client=host; or leave out enforce.',
  );
  expect(cannotEnforce('plain' as StoreName, new Map()).action).toBe('Leave out enforce.');
});
