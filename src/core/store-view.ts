import type { StowageError } from './errors.ts';
import type { StoreConfig } from './model.ts';
import type { Placement } from './placement.ts';
import type { Enforcement, Store } from './ports.ts';

/** Static properties of an open store. Reading them does not call the store. */
export type OpenStore = Pick<Store, 'identity' | 'access' | 'filesystemFor'> & {
  readonly enforcement?: Pick<Enforcement, 'always'>;
};

export interface StoreView {
  readonly config: StoreConfig;
  /** Undefined: the store is not open. */
  readonly store: OpenStore | undefined;
  readonly problem: StowageError | undefined;
  readonly placement: Placement;
  /** The client's name for users (`bind`, `loop`, …). */
  readonly clientName: string;
  readonly default: boolean;
  /** A configuration change that is not possible yet, and why. */
  readonly pending: string | undefined;
}

/** True if the store is open and its policy is not read-only. */
export const isWritable = ({ store, config }: Pick<StoreView, 'store' | 'config'>): boolean =>
  store !== undefined && !config.policy.readOnly;

/** True if the store is open and enforces the size of every volume. */
export const enforcesSizes = ({ store }: Pick<StoreView, 'store'>): boolean => store?.enforcement?.always === true;

/** A store view with the store's methods, for core only. */
export interface UsableStoreView extends StoreView {
  readonly store: Store | undefined;
}
