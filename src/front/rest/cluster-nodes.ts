import type { Scope } from '#base/log.ts';
import type { PodName } from '#core/check-places.ts';
import type { StowageError } from '#core/errors.ts';
import type { StoreCheck, VolumeId } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import type { Route } from './route.ts';
import type { StoreJson, VolumeDetailJson, VolumeJson } from './schemas.ts';
import type { VolumeCursor } from './volume-cursor.ts';

/**
 * The volumes, stores and mounts of a cluster's nodes, in the types of the REST API. A port: `cluster/nodes/` implements it by calling the
 * agents' REST APIs. A node that can't be reached does not fail a list: it is in `unreached`.
 */
export interface ClusterNodes {
  /** A page of a per-node list. `path` is the path of the list on one node, `after` the `next` of the previous page. */
  list<T extends object>(path: string, after: string | undefined, scope: Scope): Promise<NodeList<T>>;
  /**
   * A page of volumes: first the volumes of shared stores, which `shared` returns, then the volumes of node-local stores, node by node, so that
   * a page needs few nodes.
   */
  volumes(wanted: VolumePageRequest, shared: () => Promise<VolumePage>, scope: Scope): Promise<ClusterVolumePage>;
  /** The node-local stores. Stores of the same name are merged into one entry that lists its nodes. */
  stores(
    scope: Scope,
  ): Promise<{ readonly stores: readonly StoreJson[]; readonly unreached: readonly UnreachedNode[] }>;
  /** The mounts and users of a volume on a shared store. */
  mountsOf(volume: VolumeId, scope: Scope): Promise<VolumeMounts>;
  /**
   * Sends a request on to the node that has the volume, and returns that node's answer, if the request failed because the controller does not
   * know the volume. Throws `failure` if no node has the volume either, or if only the controller answers such requests.
   */
  retryOnNode(failure: unknown, request: VolumeRequest, call: Call): Promise<unknown>;
  /** Checks a store from a pod's network, through the agent of the pod's node. Undefined: there is no such pod. */
  checkStore(store: string, pod: PodName, call: Call): Promise<StoreCheck | undefined>;
}

/** A node that could not be reached, and why. */
export interface UnreachedNode {
  readonly node: string;
  readonly error: StowageError;
}

export interface NodeList<T> {
  readonly items: readonly (T & { readonly node: string })[];
  /** Undefined: the last page. */
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
  /** Left out if no node was asked. */
  readonly unreached?: readonly UnreachedNode[];
}

export type VolumeMounts = Pick<VolumeDetailJson, 'mounts' | 'users'> & {
  readonly unreached: readonly UnreachedNode[];
};

/** A request about one volume or store, as the API received it. */
export interface VolumeRequest {
  readonly method: Route['method'];
  /** The path template of the route, such as `/v1/volumes/{volume}`. */
  readonly path: string;
  /** Whether nodes answer such requests too. */
  readonly onNodes: boolean;
  /** An id, `store..name` or a name. */
  readonly volume: string | undefined;
  readonly store: string | undefined;
  readonly body: object | undefined;
  /** The request has If-Match. */
  readonly isConditional: boolean;
}
