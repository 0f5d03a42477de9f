import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { repository } from '#testbed/component.ts';
import type { AnyObject } from './cluster.ts';
import {
  type ClusterFacts,
  countsOf,
  decide,
  imageValues,
  isReady,
  ownedBy,
  volumesOfClaim,
  withImage,
} from './decision.ts';

const nothing: ClusterFacts = { deployments: [], objects: [], stores: [], volumes: [] };
const anObject = (kind: string, name: string, more: Partial<AnyObject> = {}): AnyObject => ({
  apiVersion: 'v1',
  kind,
  metadata: { name },
  ...more,
});
const controller = (namespace: string, component = 'controller'): AnyObject => {
  const labels = { 'app.kubernetes.io/name': 'stowage', 'app.kubernetes.io/component': component };
  return anObject('Deployment', 'stowage-controller', { metadata: { name: 'stowage-controller', namespace, labels } });
};
const volume = (name: string, spec: object): AnyObject =>
  anObject('PersistentVolume', name, { spec: spec as Readonly<Record<string, unknown>> });
const retained = (name: string, uid: string): AnyObject =>
  volume(name, { claimRef: { namespace: 'stowage-system', name: 'stowage-nfs', uid } });
const foreignVolume = volume('theirs', {
  claimRef: { namespace: 'default', name: 'data', uid: 'u' },
  csi: { driver: 'x' },
});

test('Stowage is installed if none of its objects exist', () => {
  const deployment = anObject('Deployment', 'stowage-controller', { metadata: { namespace: 'stowage-system' } });
  expect(decide({ ...nothing, deployments: [deployment], volumes: [foreignVolume] })).toEqual({ kind: 'install' });
});

test('a running Stowage is used, whatever its namespace is called', () => {
  const objects = [anObject('CSIDriver', 'file.stowage.dev')];
  const seen = { ...nothing, deployments: [controller('storage')], objects, volumes: [retained('disk', 'old')] };
  expect(decide(seen)).toEqual({ kind: 'use', namespace: 'storage' });
});

test('no Stowage is used if two are running', () => {
  expect(decide({ ...nothing, deployments: [controller('one'), controller('two')] })).toEqual({
    kind: 'refuse',
    why: 'Stowage is in several namespaces: one, two.',
  });
});

test.each([
  ['a namespace', { objects: [anObject('Namespace', 'stowage-system')] }, 'Namespace stowage-system'],
  [
    'the CRD of stores',
    { objects: [anObject('CustomResourceDefinition', 'stores.stowage.dev')] },
    'CustomResourceDefinition stores.stowage.dev',
  ],
  ['a store', { stores: [anObject('', 'gold')] }, 'Store gold'],
  [
    "the NFS server's disk",
    { volumes: [foreignVolume, retained('disk', 'old')] },
    'PersistentVolume disk, of the claim stowage-system/stowage-nfs',
  ],
  [
    'a volume',
    {
      volumes: [volume('kept', { csi: { driver: 'local.stowage.dev' } })],
    },
    'PersistentVolume kept, of no claim',
  ],
  [
    'a workload without a controller',
    { deployments: [controller('storage', 'nfs')], stores: [anObject('', 'x')] },
    'Store x',
  ],
] as const)('nothing is installed if an earlier installation left %s', (_, left, line) => {
  expect(decide({ ...nothing, ...left })).toEqual({
    kind: 'refuse',
    why: `Stowage does not run in this cluster, but these objects of an installation remain:
  ${line}
Nothing was changed. If you need the objects, install Stowage again as before: the tests use a running Stowage unchanged.
If you need neither the objects nor the data of these volumes, delete the objects. Then run the tests again.`,
  });
});

test('the disk of a claim is the volume with the claim’s uid, and not that of an earlier claim with the same name', () => {
  const claim = anObject('PersistentVolumeClaim', 'stowage-nfs', { metadata: { uid: 'new' } });
  const unbound = volume('free', {});
  const all = [retained('old', 'old'), retained('new', 'new'), foreignVolume, unbound];
  expect(volumesOfClaim(all, claim).map(({ metadata }) => metadata.name)).toEqual(['new']);
  expect(volumesOfClaim(all, anObject('PersistentVolumeClaim', 'stowage-nfs'))).toEqual([]);
});

test('the removal of stores includes the classes that they own', () => {
  const owned = (name: string, uid: string): AnyObject =>
    anObject('StorageClass', name, {
      metadata: { name, ownerReferences: [{ apiVersion: 'stowage.dev/v1', kind: 'Store', name, uid }] },
    });
  const classes = [owned('local', 'mine'), owned('local-2', 'theirs'), anObject('StorageClass', 'standard')];
  const stores = [anObject('Store', 'local', { metadata: { uid: 'mine' } })];
  expect(ownedBy(classes, stores).map(({ metadata }) => metadata.name)).toEqual(['local']);
});

test('Stowage is ready when its controller, agents and keepers are, whatever else is in the namespace', () => {
  const agents = (ready: number): AnyObject => ({
    ...controller('storage', 'agent'),
    status: { desiredNumberScheduled: 2, numberReady: ready },
  });
  const deployment = { ...controller('storage'), spec: { replicas: 2 }, status: { readyReplicas: 2 } };
  const areReady = (all: readonly AnyObject[]): boolean => isReady(countsOf(all));
  const foreign = anObject('Deployment', 'foreign', { spec: { replicas: 1 }, status: {} });
  expect(areReady([deployment, agents(2), agents(2), foreign])).toBe(true);
  expect(areReady([deployment, agents(1), agents(2)])).toBe(false);
  expect(areReady([deployment, agents(2)])).toBe(false);
  expect(areReady([{ ...deployment, status: {} }, agents(2), agents(2)])).toBe(false);
});

test.each([
  ['stowage:2026', ['image.repository=stowage', 'image.tag=2026']],
  ['host:5000/a/stowage', ['image.repository=host:5000/a/stowage', 'image.tag=']],
  ['host:5000/stowage:1', ['image.repository=host:5000/stowage', 'image.tag=1']],
  ['a/stowage@sha256:12', ['image.repository=a/stowage', 'image.digest=sha256:12']],
  ['a/stowage:1@sha256:12', ['image.repository=a/stowage', 'image.digest=sha256:12']],
])('the image %s is split into repository and tag', (image, values) => {
  expect(imageValues(image)).toEqual(values);
});

test('every container of the plain manifests uses the given image', () => {
  const manifests = readFileSync(join(repository, 'deploy', 'kubernetes', 'stowage.yaml'), 'utf8');
  const images = [...withImage(manifests, 'host:5000/$1:next').matchAll(/ image: (.*)/g)].map(([, image]) => image);
  expect(images).toEqual(Array(3).fill('host:5000/$1:next'));
  expect(() => withImage('kind: Namespace', 'x')).toThrow('the manifests name no image that could be replaced');
});
