import { realpath } from 'node:fs/promises';
import { relative } from 'node:path';
import { systemClock } from '#base/clock.ts';
import { endsWithin } from '#base/wait.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreConfig } from '#core/model.ts';
import { isShared, type Placement } from '#core/placement.ts';
import type { LocalDirectory, Store, StoreKind } from '#core/ports.ts';
import { schemeOf } from '#core/store-scheme.ts';
import { parseOptions } from '#stores/nfs/options.ts';
import type { StateFolder } from './state-folder.ts';

export const isWithin = (inner: string, outer: string): boolean => {
  const way = relative(outer, inner);
  return way !== '' && way !== '..' && !way.startsWith('../');
};

const identityLookupTimeoutMs = 2_000;

interface StoreRoot {
  readonly name: string;
  /** This machine, or a server by all its names. Paths can be compared only on the same one. */
  readonly on: readonly string[];
  readonly root: string;
  readonly readOnly: boolean;
  /** Set when it is open. */
  store: Store | undefined;
}

/** Finds the directory of a store with this configuration. */
export type LocateStore = (config: StoreConfig) => Promise<Pick<StoreRoot, 'on' | 'root'>>;

/** Throws if a store must not be in this directory. */
export type CheckStore = (place: { readonly name: string; readonly root: string }) => void | Promise<void>;

/**
 * Stores must not be nested: the content of one would count as volumes of the other, which could be renamed and deleted. One directory can
 * have one store, and any number of read-only stores. Another Stowage in the same directory is handled by the store itself, which locks or
 * shares it.
 */
export function refuseOverlaps(kind: StoreKind, placeOf: LocateStore, ...refusing: readonly CheckStore[]): StoreKind {
  // Places by identity, not by path: one directory can be open twice, once read-only.
  const places = new Set<StoreRoot>();
  return {
    ...kind,
    open: async (config, policy, context, scope) => {
      const { readOnly } = policy;
      const place: StoreRoot = { name: config.name, ...(await placeOf(config)), readOnly, store: undefined };
      for (const refuse of refusing) await refuse(place);
      refuseOverlap(place, places);
      // Added before it is open, so that two stores that are opened concurrently see each other.
      places.add(place);
      try {
        const store = await kind.open(config, policy, context, scope);
        place.store = store;
        try {
          refuseSameIdentity(place, places, store, kind.placement);
          await refuseNested(place, places);
        } catch (cause) {
          await store.close();
          throw cause;
        }
        const close = async (): Promise<void> => {
          places.delete(place);
          await store.close();
        };
        return { ...store, close };
      } catch (cause) {
        places.delete(place);
        throw cause;
      }
    },
  };
}

/** Two names of one place, for example of one server: the locks between hosts would not separate two stores of the same host. */
function refuseSameIdentity(
  place: StoreRoot,
  places: Iterable<StoreRoot>,
  { identity }: Store,
  placement: Placement,
): void {
  const sameStore = [...places].find(
    (other) => other !== place && !other.readOnly && other.store?.identity === identity,
  );
  // A local store with the same identity is a copy: local directories are compared by path.
  if (identity === undefined || place.readOnly || !isShared(placement) || sameStore === undefined) return;
  throw alreadyUsed(place.name, place.root, sameStore.name);
}

/** For nested stores by different names of one server: the outer store can see the identity of the inner one. */
async function refuseNested(place: StoreRoot, places: Iterable<StoreRoot>): Promise<void> {
  const nested = [...places].filter(({ root }) => isWithin(root, place.root) || isWithin(place.root, root));
  for (const other of nested) {
    const [outer, inner] = isWithin(place.root, other.root) ? [other, place] : [place, other];
    const identity = inner.store?.identity;
    if (identity === undefined || (await identitySeen(outer, relative(outer.root, inner.root))) !== identity) continue;
    throw overlapping(place.name, place.root, `the store at ${other.root}`);
  }
}

/** Undefined also if the store does not answer: opening one store must not depend on the server of another. */
async function identitySeen({ store }: StoreRoot, below: string): Promise<string | undefined> {
  const seen = store?.identityOfSubdirectory?.(below).catch(() => undefined);
  return seen !== undefined && (await endsWithin(seen, identityLookupTimeoutMs, systemClock()))
    ? await seen
    : undefined;
}

function refuseOverlap({ name, on, root, readOnly }: StoreRoot, places: Iterable<StoreRoot>): void {
  for (const other of places) {
    if (!on.some((one) => other.on.includes(one))) continue;
    if (isWithin(root, other.root) || isWithin(other.root, root))
      throw overlapping(name, root, `the store at ${other.root}`);
    if (root === other.root && !readOnly && !other.readOnly) throw alreadyUsed(name, root, other.name);
  }
}

/** Undefined: the store is not in a directory of this machine, or its URI cannot be parsed. */
export const localDirectoryOf = (
  kinds: ReadonlyMap<string, StoreKind>,
  config: StoreConfig,
): LocalDirectory | undefined => kinds.get(schemeOf(config.uri))?.localDirectory?.(config);

/** For local stores. A missing directory is reported by the store kind itself. */
export const locateLocalStore =
  (kind: Pick<StoreKind, 'localDirectory'>): LocateStore =>
  async (config) => {
    const { path: wanted = '' } = kind.localDirectory?.(config) ?? {};
    return { on: ['this machine'], root: await realpath(wanted).catch(() => wanted) };
  };

/** Refuses directories that contain the state folder, are inside its mounts, or overlap the export of the embedded NFS server. */
export function refuseStateFolder(state: StateFolder, exported: string | undefined): CheckStore {
  return ({ name, root }) => {
    const holdsState = root === state.path || isWithin(state.path, root);
    const inMounts = root === state.mounts || isWithin(root, state.mounts);
    if (holdsState || inMounts) throw overlapping(name, root, `the state folder ${state.path}`);
    if (exported === undefined || !(root === exported || isWithin(root, exported) || isWithin(exported, root))) return;
    throw overlapping(name, root, `the export of the embedded NFS server, ${exported}`);
  };
}

/**
 * For NFS stores: compares servers by the given names. Different names of one server are detected when the store is open. In another network
 * the same name may mean another server.
 */
export const locateNfsStore: LocateStore = async ({ uri, options }) => {
  const { hosts, port = 2049, path, network = 'the host' } = parseOptions(uri, options);
  return { on: hosts.map((host) => `${host.toLowerCase()} port ${port} from ${network}`), root: path };
};

function overlapping(name: string, root: string, what: string): StowageError {
  return new StowageError(`store '${name}' at ${root} overlaps ${what}`, {
    code: 'invalid',
    reason: 'store-overlaps',
    action: 'Use a separate directory that is neither inside nor above the other.',
  });
}

function alreadyUsed(name: string, root: string, other: string): StowageError {
  return new StowageError(`store '${name}' cannot use ${root}: store '${other}' already uses it`, {
    code: 'exists',
    reason: 'store-place-taken',
    action: `Use store '${other}', or a separate directory. To use the same directory read-only, set readOnly=true.`,
  });
}
