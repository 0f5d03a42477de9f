import type { Scope } from '#base/log.ts';
import type { PodName } from '#core/check-places.ts';
import type { StowageError } from '#core/errors.ts';
import type { StoreCheck, VolumeId } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import type { Route } from './route.ts';
import type { StoreJson, VolumeDetailJson, VolumeJson } from './schemas.ts';
import type { VolumeCursor } from './volume-cursor.ts';

/**
 * What the nodes of a cluster have, in the words of the REST API. A port: `cluster/nodes/` implements it, by the agents' own REST APIs.
 * One node that cannot be asked does not fail a list: it is in `unreached`.
 */
export interface ClusterNodes {
  /** A page of a list that each node has for itself. `path` is that of the list on one node, `after` the `next` of the page before. */
  list<T extends object>(path: string, after: string | undefined, scope: Scope): Promise<NodeList<T>>;
  /**
   * A page of volumes: first those that nodes share, then those of each node, node by node, so that a page asks few nodes.
   * `shared` gives the page of those that nodes share.
   */
  volumes(wanted: VolumePageRequest, shared: () => Promise<VolumePage>, scope: Scope): Promise<ClusterVolumePage>;
  /** The stores that nodes have for themselves: those of one name as one, with what each node has. */
  stores(
    scope: Scope,
  ): Promise<{ readonly stores: readonly StoreJson[]; readonly unreached: readonly UnreachedNode[] }>;
  /** Where a volume that nodes share is mounted, and who uses it there. */
  mountsOf(volume: VolumeId, scope: Scope): Promise<VolumeMounts>;
  /**
   * Answers a request that failed here because the controller does not know its volume: the node that has the volume does it. Gives
   * that node's answer. Throws `failure` if no node has it either, or if only the controller answers such requests.
   */
  retryOnNode(failure: unknown, request: VolumeRequest, call: Call): Promise<unknown>;
  /** Checks a store from the network of a pod, by the agent of the pod's node. Undefined: there is no such pod. */
  checkStore(store: string, pod: PodName, call: Call): Promise<StoreCheck | undefined>;
}

/** A node that could not be asked, and why. */
export interface UnreachedNode {
  readonly node: string;
  readonly error: StowageError;
}

export interface NodeList<T> {
  readonly items: readonly (T & { readonly node: string })[];
  /** Undefined: this was the last page. */
  readonly next: string | undefined;
  readonly unreached: readonly UnreachedNode[];
}

export interface VolumePageRequest {
  readonly filter: {
    readonly store?: string | undefined;
    readonly reach?: 'anywhere' | 'node' | undefined;
    readonly label?: readonly string[] | undefined;
    readonly contains?: string | undefined;
  };
  readonly after: VolumeCursor | undefined;
  readonly limit: number;
}

export interface VolumePage {
  readonly items: readonly VolumeJson[];
  readonly next: VolumeCursor | undefined;
  /** Stores that could not be listed. */
  readonly unanswered: readonly string[];
}

export interface ClusterVolumePage extends VolumePage {
  /** Left out: no node was asked. */
  readonly unreached?: readonly UnreachedNode[];
}

export type VolumeMounts = Pick<VolumeDetailJson, 'mounts' | 'users'> & {
  readonly unreached: readonly UnreachedNode[];
};

/** A request about one volume or store, as the API got it. */
export interface VolumeRequest {
  readonly method: Route['method'];
  /** As in the table of routes, with `{volume}` in it. */
  readonly path: string;
  /** Whether nodes answer such requests too. */
  readonly onNodes: boolean;
  /** An id, `store..name` or a name. */
  readonly volume: string | undefined;
  readonly store: string | undefined;
  readonly body: object | undefined;
  /** It has a condition on the revision of the volume. */
  readonly isConditional: boolean;
}
