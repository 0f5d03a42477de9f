import type { Writable } from 'node:stream';
import type { FindingJson } from '#front/rest/schemas.ts';
import type { ClusterAddress, ClusterOptions } from './cluster-connection.ts';
import type { TakeOverRequest, TakeOverService } from './take-over-service.ts';

/** The world as the command line sees it; handed in, so that tests need no process. */
export interface Io {
  readonly stdout: Writable;
  readonly stderr: Writable;
  /** A person is watching: colours and progress bars are for them only. */
  readonly isTTY: boolean;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Ctrl-C. */
  readonly signal: AbortSignal;
}

export interface UpOptions {
  readonly state?: string;
  readonly socket?: string;
  /** `host:port`, or `none`. */
  readonly listen?: string;
  readonly config?: string;
  readonly logLevel?: string;
  /** The folder for the sockets by which container engines reach Stowage, or `none`. */
  readonly plugins?: string;
  /** The folder for the sockets of CSI drivers. */
  readonly csi?: string;
  /** A kubelet's folder of plugins. */
  readonly csiRegistry?: string;
  /** How many volumes of each CSI driver may be mounted. */
  readonly maxVolumes?: number;
  /** A kubelet's own folder: where both of these are, unless they are said. */
  readonly kubelet?: string;
  /** What this machine is called, where it is not by its own name for itself. */
  readonly nodeName?: string;
  /** The engines' own sockets, or `none`. */
  readonly dockerSocket?: string;
  readonly podmanSocket?: string;
  /** `stowage node`: no store of its own, no TCP port. */
  readonly bare?: boolean;
  /** Stores are what the Store objects of a cluster say. */
  readonly kubernetes?: boolean;
  readonly kubeconfig?: string;
  readonly namespace?: string;
  /** `host:port` for probes, or `none`. */
  readonly health?: string;
  /** `host:port` for figures alone, or `none`. */
  readonly metrics?: string;
  /** With the embedded NFS server. */
  readonly nfs?: boolean;
  /** Its port, where it is not the one it had before. */
  readonly nfsPort?: number;
}

export interface ControllerOptions {
  readonly state?: string;
  readonly kubeconfig?: string;
  readonly namespace?: string;
  /** `host:port`, or `none`. */
  readonly health?: string;
  /** `host:port` of the door for agents and users, or `none`. */
  readonly listen?: string;
  /** A Secret with the door's certificate, kept by somebody else. */
  readonly tlsSecret?: string;
  readonly logLevel?: string;
}

/** One user or group, as clients and as this machine number them. */
export interface NfsMapping {
  readonly client: number;
  readonly here: number;
}

export interface NfsServeOptions {
  readonly directory: string;
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  /** None: only processes of the same user on this machine. */
  readonly allow: readonly string[];
  readonly privilegedPorts: boolean;
  readonly squash?: 'root' | 'all' | 'none';
  readonly anonUid?: number;
  readonly anonGid?: number;
  readonly users: readonly NfsMapping[];
  readonly groups: readonly NfsMapping[];
  readonly readOnly: boolean;
  readonly async: boolean;
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly tlsCa?: string;
  /** Common names in certificates of callers that only use volumes. */
  readonly tlsConfine: readonly string[];
  readonly tlsOptional: boolean;
  readonly portmapper?: number;
  readonly state?: string;
}

/** What is exported, and how to use it. */
export interface NfsServed {
  readonly directory: string;
  readonly host: string;
  readonly port: number;
  readonly path: string;
  readonly portmapper: number | null;
  /** What a store that uses it is given. */
  readonly uri: string;
  /** What such a store could be called. */
  readonly name: string;
  /** Lines for people. */
  readonly about: Readonly<Record<string, string>>;
  /** What should be known before it is used. */
  readonly notes: readonly string[];
}

export interface KeeperOptions {
  readonly folder?: string;
  readonly pod?: string;
  /** Asks the one that runs. */
  readonly check?: 'alive' | 'ready';
}

/** What the command line cannot do through the REST API, given by the program around it. */
export interface ProgramServices {
  /** Runs the server until it is told to stop; the exit status. */
  up(options: UpOptions): Promise<number>;
  /** The same for the controller of a cluster. */
  controller(options: ControllerOptions): Promise<number>;
  /** Exports a directory until it is told to stop; the exit status. */
  nfsServe(options: NfsServeOptions, ready: (served: NfsServed) => void): Promise<number>;
  /** Becomes a keeper, or asks the one that runs; the exit status. */
  keeper(options: KeeperOptions): Promise<number>;
  /** Looks at this machine without a server. */
  doctor(): Promise<readonly FindingJson[]>;
  /** Given: this is `kubectl stowage`, and speaks to the Stowage of a cluster, by the way that this finds. */
  cluster?(options: ClusterOptions): Promise<ClusterAddress>;
  /** Likewise: at the API server itself, as whoever the kubeconfig says. */
  takeOver?(request: TakeOverRequest): Promise<TakeOverService>;
  readonly version: string;
  /** The name people call it by. */
  readonly program: string;
}
