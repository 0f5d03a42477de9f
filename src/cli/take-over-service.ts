export interface TakeOverRequest {
  readonly kubeconfig: string | undefined;
  readonly context: string | undefined;
  /** The store that will own the volumes. */
  readonly store: string;
  /** Other names and addresses of the store's server. */
  readonly servers: readonly string[];
}

/**
 * `ready`: can be taken over. `used`: can be taken over once no pod uses it. `begun`: a take-over or its undoing was interrupted.
 * `taken-over`: can be undone or finished. `unclaimed`: no claim is bound to it. `impossible`: see `detail`.
 */
export type TakeOverState = 'ready' | 'used' | 'begun' | 'taken-over' | 'unclaimed' | 'impossible';

export type TakeOverAction = 'take' | 'undo' | 'finish';

/** A PersistentVolume of another provisioner whose directory is on the store. */
export interface TakeOverCandidate {
  /** `namespace/name`; null: unbound. */
  readonly claim: string | null;
  /** The original PersistentVolume, and the one that Stowage creates. */
  readonly from: string;
  readonly to: string;
  /** The volume's name on the store, or a path below the store's directory. */
  readonly directory: string;
  readonly state: TakeOverState;
  /** The reason for the state, or empty. */
  readonly detail: string;
}

export interface TakeOverCandidates {
  readonly candidates: readonly TakeOverCandidate[];
  /** Servers of PersistentVolumes that are not on the store's server. */
  readonly otherServers: readonly string[];
}

/**
 * Moves claims of other provisioners to Stowage, with the same names and data, with the rights of the calling user. Every step is idempotent,
 * and an interrupted take-over can be continued in either direction.
 */
export interface TakeOverService extends Disposable {
  /** `action`: what the caller will do with the candidates. */
  findCandidates(action: TakeOverAction): Promise<TakeOverCandidates>;
  /** `id`: the volume that the directory has become. `identity`: the store's identity, if known. */
  take(candidate: TakeOverCandidate, id: string, identity: string | undefined): Promise<void>;
  undo(candidate: TakeOverCandidate): Promise<void>;
  /** Returns what the user should know about the claim, or an empty string. */
  finish(candidate: TakeOverCandidate, identity: string | undefined): Promise<string>;
}
