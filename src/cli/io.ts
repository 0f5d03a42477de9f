import type { Writable } from 'node:stream';
import type { FindingJson } from '#front/rest/schemas.ts';
import type { ClusterAddress, ClusterOptions } from './cluster-connection.ts';
import type { TakeOverRequest, TakeOverService } from './take-over-service.ts';

/** The process as the command line sees it; a parameter, so that tests need no process. */
export interface Io {
  readonly stdout: Writable;
  readonly stderr: Writable;
  /** Standard output and error are a terminal: show colours and progress bars. */
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
  /** The folder for the sockets of the volume plugins, or `none`. */
  readonly plugins?: string;
  /** The folder for the sockets of CSI drivers. */
  readonly csi?: string;
  /** The kubelet's plugin registry. */
  readonly csiRegistry?: string;
  /** How many volumes of each CSI driver this node may have mounted. */
  readonly maxVolumes?: number;
  /** The kubelet's root folder; the default for `csi` and `csiRegistry`. */
  readonly kubelet?: string;
  /** The node's name; default: the host name. */
  readonly nodeName?: string;
  /** The sockets of the engines' own APIs, or `none`. */
  readonly dockerSocket?: string;
  readonly podmanSocket?: string;
  /** `stowage node`: no store of its own, no TCP port. */
  readonly bare?: boolean;
  /** The stores come from the cluster's Store objects. */
  readonly kubernetes?: boolean;
  readonly kubeconfig?: string;
  readonly namespace?: string;
  /** `host:port` for probes, or `none`. */
  readonly health?: string;
  /** `host:port` for /metrics only, or `none`. */
  readonly metrics?: string;
  /** With the embedded NFS server. */
  readonly nfs?: boolean;
  /** The port of the NFS server; default: the previous one. */
  readonly nfsPort?: number;
}

export interface ControllerOptions {
  readonly state?: string;
  readonly kubeconfig?: string;
  readonly namespace?: string;
  /** `host:port`, or `none`. */
  readonly health?: string;
  /** `host:port` for agents and users, or `none`. */
  readonly listen?: string;
  /** A Secret with the server's certificate, which another program maintains. */
  readonly tlsSecret?: string;
  readonly logLevel?: string;
}

/** A uid or gid of the clients, and the one that it maps to on this machine. */
export interface NfsMapping {
  readonly client: number;
  readonly here: number;
}

export interface NfsServeOptions {
  readonly directory: string;
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  /** Empty: only processes of the same user, and of root, on this machine. */
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
  /** Common names of client certificates that may only use volumes. */
  readonly tlsConfine: readonly string[];
  readonly tlsOptional: boolean;
  readonly portmapper?: number;
  readonly state?: string;
}

/** The export, and how to use it. */
export interface NfsServed {
  readonly directory: string;
  readonly host: string;
  readonly port: number;
  readonly path: string;
  readonly portmapper: number | null;
  /** The URI for a store that uses the export. */
  readonly uri: string;
  /** A suggested name for such a store. */
  readonly name: string;
  /** Lines for people. */
  readonly about: Readonly<Record<string, string>>;
  /** Warnings. */
  readonly notes: readonly string[];
}

export interface KeeperOptions {
  readonly folder?: string;
  readonly pod?: string;
  /** Checks the running keeper instead of starting one. */
  readonly check?: 'alive' | 'ready';
}

/** What the command line can't do through the REST API; the program provides it. */
export interface ProgramServices {
  /** Runs the server until a signal stops it; returns the exit status. */
  up(options: UpOptions): Promise<number>;
  /** The same for the controller of a cluster. */
  controller(options: ControllerOptions): Promise<number>;
  /** Exports a directory until a signal stops it; returns the exit status. */
  nfsServe(options: NfsServeOptions, ready: (served: NfsServed) => void): Promise<number>;
  /** Runs a keeper or checks the running one; returns the exit status. */
  keeper(options: KeeperOptions): Promise<number>;
  /** Checks this machine without a server. */
  doctor(): Promise<readonly FindingJson[]>;
  /** Defined for `kubectl stowage`: finds the Stowage of a cluster. */
  cluster?(options: ClusterOptions): Promise<ClusterAddress>;
  /** Defined for `kubectl stowage`: uses the API server directly, as the kubeconfig's user. */
  takeOver?(request: TakeOverRequest): Promise<TakeOverService>;
  readonly version: string;
  /** The name of the program as the user runs it. */
  readonly program: string;
}
