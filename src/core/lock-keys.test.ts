import { expect, test } from 'vitest';
import { operationKeys } from './lock-keys.ts';
import type { Operation } from './model.ts';
import { newOperationId } from './names.ts';

const id = 'sv1-00000000-0000-4000-8000-000000000000';
const keysOf = (kind: string, params: Operation['params']): readonly string[] =>
  operationKeys({
    id: newOperationId(),
    kind,
    store: 'silver',
    subject: 'silver/a',
    params,
    state: 'running',
    startedAt: 1,
    endedAt: undefined,
    error: undefined,
  });

test('an operation on a volume locks the volume and its names', () => {
  expect(keysOf('volume.delete', { id, name: 'a' })).toEqual([`volume ${id}`, 'name silver/a']);
  expect(keysOf('volume.rename', { id, name: 'a', to: 'b' })).toEqual([
    `volume ${id}`,
    'name silver/a',
    'name silver/b',
  ]);
});

test('an operation on a volume in the trash does not lock the old name of the volume', () => {
  expect(keysOf('trash.purge', { id, name: 'a', expired: true })).toEqual([`volume ${id}`]);
  expect(keysOf('volume.restore', { id, name: 'a', to: 'b' })).toEqual([`volume ${id}`, 'name silver/b']);
});
