export interface TakeOverRequest {
  readonly kubeconfig: string | undefined;
  readonly context: string | undefined;
  /** Whose volumes they are to become. */
  readonly store: string;
  /** What else the store's server is called. */
  readonly servers: readonly string[];
}

/**
 * `ready`: it can be taken over. `used`: when no pod uses it any more. `begun`: it was, or was being undone, and somebody or something
 * stopped it half-way. `taken-over`: it can be undone, or finished. `unclaimed`: no claim has it. `impossible`: see why.
 */
export type TakeOverState = 'ready' | 'used' | 'begun' | 'taken-over' | 'unclaimed' | 'impossible';

export type TakeOverAction = 'take' | 'undo' | 'finish';

/** A PersistentVolume of somebody else's whose directory is on the store. */
export interface TakeOverCandidate {
  /** `namespace/name`; null: none has it. */
  readonly claim: string | null;
  /** The PersistentVolume that is there before, and the one of Stowage's. */
  readonly from: string;
  readonly to: string;
  /** As the store knows it, or below the store's own. */
  readonly directory: string;
  readonly state: TakeOverState;
  /** Why it is as it is; empty: there is nothing to be said. */
  readonly detail: string;
}

export interface TakeOverCandidates {
  readonly candidates: readonly TakeOverCandidate[];
  /** Servers that other such PersistentVolumes name. */
  readonly otherServers: readonly string[];
}

/**
 * Claims of others become claims of Stowage's, with the same names and the same data. It is done with the rights of whoever asks for it.
 * Every step can be repeated, in either direction, whenever the one before ended.
 */
export interface TakeOverService extends Disposable {
  /** `deed`: what is to be done then. */
  findCandidates(deed: TakeOverAction): Promise<TakeOverCandidates>;
  /** `id`: of the volume that the directory has become. `identity`: what its store says that it is, if that is known. */
  take(candidate: TakeOverCandidate, id: string, identity: string | undefined): Promise<void>;
  undo(candidate: TakeOverCandidate): Promise<void>;
  /** Gives what its user has to know of it; empty: nothing. */
  finish(candidate: TakeOverCandidate, identity: string | undefined): Promise<string>;
}
