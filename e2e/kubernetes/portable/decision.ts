// What is to be done in a cluster, by what is there. Nothing here asks the cluster.
import type { AnyObject } from './cluster.ts';

/** Of Stowage, as the API server lists it. */
export interface ClusterFacts {
  /** Of all namespaces, whoever has them. */
  readonly deployments: readonly AnyObject[];
  /** What an installation makes outside of namespaces, with its namespace; but its stores. */
  readonly objects: readonly AnyObject[];
  readonly stores: readonly AnyObject[];
  /** All that the cluster has. */
  readonly volumes: readonly AnyObject[];
}

export type Decision =
  | { readonly kind: 'use'; readonly namespace: string }
  | { readonly kind: 'install' }
  | { readonly kind: 'refuse'; readonly why: string };

/** Where it is installed by these tests, and by whoever does as the documentation says. */
export const usualNamespace = 'stowage-system';
const labels = { name: 'app.kubernetes.io/name', component: 'app.kubernetes.io/component' } as const;

/** One that runs is used. What was left of another is never touched: there may be data behind it. */
export function decide(seen: ClusterFacts): Decision {
  const homes = [...new Set(ownOf(seen.deployments).filter(isController).map(namespaceOf))];
  const [home] = homes;
  if (homes.length > 1) return { kind: 'refuse', why: `Stowage is in several namespaces: ${homes.join(', ')}.` };
  if (home !== undefined) return { kind: 'use', namespace: home };
  const left = leftovers(seen);
  return left.length === 0 ? { kind: 'install' } : { kind: 'refuse', why: refusal(left) };
}

/** Those with Stowage's label: others may be in its namespace. */
const ownOf = (things: readonly AnyObject[]): readonly AnyObject[] =>
  things.filter(({ metadata }) => metadata.labels?.[labels.name] === 'stowage');

const isController = ({ metadata }: AnyObject): boolean => metadata.labels?.[labels.component] === 'controller';
const namespaceOf = ({ metadata }: AnyObject): string => metadata.namespace ?? '';

interface VolumeSpec {
  readonly claimRef?: { readonly namespace?: string; readonly name?: string; readonly uid?: string };
  readonly csi?: { readonly driver?: string };
}

function leftovers({ objects, stores, volumes }: ClusterFacts): readonly string[] {
  const isLeft = ({ spec }: AnyObject): boolean => {
    const { claimRef, csi } = (spec ?? {}) as VolumeSpec;
    return claimRef?.namespace === usualNamespace || csi?.driver?.endsWith('.stowage.dev') === true;
  };
  return [
    ...objects.map(({ kind, metadata }) => `${kind} ${metadata.name}`),
    ...stores.map(({ metadata }) => `Store ${metadata.name}`),
    ...volumes.filter(isLeft).map(({ metadata, spec }) => {
      const { claimRef } = (spec ?? {}) as VolumeSpec;
      const whose = claimRef === undefined ? 'of no claim' : `of the claim ${claimRef.namespace}/${claimRef.name}`;
      return `PersistentVolume ${metadata.name}, ${whose}`;
    }),
  ];
}

const refusal = (left: readonly string[]): string =>
  [
    'Stowage does not run in this cluster, but this was left of it:',
    ...left.map((line) => `  ${line}`),
    'It was not touched. If it is needed, install Stowage again as it was: the tests use what runs, and leave it as it is.',
    'If it is not, and neither are the data of these volumes, delete these objects. Then run the tests again.',
  ].join('\n');

/** The disk that a claim has, and no other: one that outlived a claim of the same name has the uid of that one. */
export const disksOf = (volumes: readonly AnyObject[], { metadata }: AnyObject): readonly AnyObject[] =>
  volumes.filter(({ spec }) => {
    const { uid } = (spec as VolumeSpec | undefined)?.claimRef ?? {};
    return uid !== undefined && uid === metadata.uid;
  });

/** What goes with others, by itself or with help. */
export const ownedBy = (things: readonly AnyObject[], owners: readonly AnyObject[]): readonly AnyObject[] => {
  const uids = new Set(owners.map(({ metadata }) => metadata.uid));
  return things.filter(({ metadata }) => metadata.ownerReferences?.some(({ uid }) => uids.has(uid)) === true);
};

export interface Count {
  readonly name: string | undefined;
  readonly wanted: unknown;
  readonly ready: unknown;
}

/** Of pods: Deployments and StatefulSets say it otherwise than DaemonSets. */
export const countsOf = (workloads: readonly AnyObject[]): readonly Count[] =>
  ownOf(workloads).map(({ metadata: { name }, spec, status }) => ({
    name,
    wanted: spec?.['replicas'] ?? status?.['desiredNumberScheduled'],
    ready: status?.['readyReplicas'] ?? status?.['numberReady'] ?? 0,
  }));

/** Controller, agents and keepers are there at least. */
export const isReady = (counts: readonly Count[]): boolean =>
  counts.length >= 3 && counts.every(({ wanted, ready }) => wanted === ready && wanted !== 0);

/** As values of the chart, which are to be taken as text: a tag may look like a number. */
export function imageValues(image: string): readonly string[] {
  const [named = '', digest] = image.split('@');
  const at = named.lastIndexOf(':');
  const [repository, tag] = at > named.lastIndexOf('/') ? [named.slice(0, at), named.slice(at + 1)] : [named, ''];
  return [`image.repository=${repository}`, digest === undefined ? `image.tag=${tag}` : `image.digest=${digest}`];
}

/** The plain manifests, whose image is one that no registry need have. */
export function withImage(manifests: string, image: string): string {
  const own = /^( +image: )stowage:\S+$/gm;
  if (!own.test(manifests)) throw new Error('the manifests name no image that could be replaced');
  return manifests.replaceAll(own, (_, before: string) => `${before}${image}`);
}
