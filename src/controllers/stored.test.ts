import { expect, test } from 'vitest';
import type { StoreName, VolumeId, VolumeName } from '#core/model.ts';
import { handlesOf } from '#core/volume-handles.ts';
import { handleAndStoreOf, topologiesOf } from './handles.ts';
import { volumeNameFor } from './names.ts';
import { nameFor, parametersOf } from './parameters.ts';
import { annotationOf, anyNode, nodesIn } from './unhealthy-nodes.ts';

// Existing clusters have objects with these values. Most of the values are immutable.

const id = 'sv1-00000000-0000-4000-8000-000000000001' as VolumeId;

test('a PersistentVolume is matched to its volume by handle, and names its store and nodes', () => {
  expect(volumeNameFor('uid-1')).toBe('pvc-uid-1');
  expect(handlesOf({ id, store: 'silver' as StoreName, name: 'a' as VolumeName })).toEqual([id, 'silver..a']);
  const matchExpressions = [{ key: 'local.stowage.dev/node', operator: 'In', values: ['node-1'] }];
  const spec = {
    csi: { driver: 'file.stowage.dev', volumeHandle: id, volumeAttributes: { store: 'silver', name: 'a' } },
    nodeAffinity: { required: { nodeSelectorTerms: [{ matchExpressions }] } },
  };
  expect(handleAndStoreOf({ metadata: {}, spec })).toEqual({ handle: id, store: 'silver' });
  expect(topologiesOf({ spec })).toEqual(['node-1']);
});

test('a StorageClass keeps its parameters: store, enforce and nameTemplate', () => {
  const parameters = {
    store: 'silver',
    enforce: 'true',
    nameTemplate: '{namespace}-{name}-{label:team}-{annotation:a}-{uid}',
  };
  const read = parametersOf({ metadata: { name: 'class' }, provisioner: 'file.stowage.dev', parameters });
  expect(read).toEqual({ ...parameters, enforce: true });
  const metadata = { namespace: 'shop', name: 'cart', uid: 'u', labels: { team: 'x' }, annotations: { a: 'y' } };
  expect(nameFor({ metadata, spec: {} }, read.nameTemplate)).toBe('shop-cart-x-y-u');
});

test('a new leader reads the unhealthy nodes that an older leader wrote', () => {
  expect(annotationOf(['node-1', 'node-2'])).toBe('node-1 node-2');
  expect(nodesIn('node-1 node-2')).toEqual(['node-1', 'node-2']);
  expect(nodesIn('*')).toEqual(anyNode);
});
