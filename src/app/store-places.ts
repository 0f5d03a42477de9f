import { realpath } from 'node:fs/promises';
import { relative } from 'node:path';
import { systemClock } from '#base/clock.ts';
import { endsWithin } from '#base/wait.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreConfig } from '#core/model.ts';
import { isShared, type Placement } from '#core/placement.ts';
import type { LocalDirectory, Store, StoreKind } from '#core/ports.ts';
import { schemeOf } from '#core/store-uri.ts';
import { parseOptions } from '#stores/nfs/options.ts';
import type { StateFolder } from './state-folder.ts';

export const isWithin = (inner: string, outer: string): boolean => {
  const way = relative(outer, inner);
  return way !== '' && way !== '..' && !way.startsWith('../');
};

const lookMs = 2_000;

interface Place {
  readonly name: string;
  /** This machine, or one server by all of its names: only on the same one can paths be compared. */
  readonly on: readonly string[];
  readonly root: string;
  readonly readOnly: boolean;
  /** Once it is open. */
  store: Store | undefined;
}

/** Where a store of that configuration lies. */
export type PlaceOf = (config: StoreConfig) => Promise<Pick<Place, 'on' | 'root'>>;

/** Refuses a place for what it is on, or what it overlaps that is not a store. */
export type Refuse = (place: { readonly name: string; readonly root: string }) => void | Promise<void>;

/**
 * Stores must not lie in each other: what one of them holds would be a volume of the other, to be renamed and deleted as
 * such. One directory is one store, and as many as one likes that only read it. Another Stowage in the same directory is
 * the store's own business: it locks it, or shares it.
 */
export function keepApart(kind: StoreKind, placeOf: PlaceOf, ...refusing: readonly Refuse[]): StoreKind {
  // By object, not by path: one directory can be open twice, once read-only.
  const places = new Set<Place>();
  return {
    ...kind,
    open: async (config, policy, context, scope) => {
      const { readOnly } = policy;
      const place: Place = { name: config.name, ...(await placeOf(config)), readOnly, store: undefined };
      for (const refuse of refusing) await refuse(place);
      refuseOverlap(place, places);
      // Before it is open, so that two that are opened at once see each other.
      places.add(place);
      try {
        const store = await kind.open(config, policy, context, scope);
        place.store = store;
        try {
          refuseTwin(place, places, store, kind.placement);
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

/** One place by two names, such as those of one server: what keeps hosts apart would not keep one host's stores apart. */
function refuseTwin(place: Place, places: Iterable<Place>, { identity }: Store, placement: Placement): void {
  const twin = [...places].find((other) => other !== place && !other.readOnly && other.store?.identity === identity);
  // A local store that has another's identity is a copy of it: one directory is known by its path.
  if (identity === undefined || place.readOnly || !isShared(placement) || twin === undefined) return;
  throw taken(place.name, place.root, twin.name);
}

/** One in the other, by two names of one server: then the outer one sees there what the inner one says that it is. */
async function refuseNested(place: Place, places: Iterable<Place>): Promise<void> {
  const nested = [...places].filter(({ root }) => isWithin(root, place.root) || isWithin(place.root, root));
  for (const other of nested) {
    const [outer, inner] = isWithin(place.root, other.root) ? [other, place] : [place, other];
    const identity = inner.store?.identity;
    if (identity === undefined || (await identitySeen(outer, relative(outer.root, inner.root))) !== identity) continue;
    throw overlaps(place.name, place.root, `the store at ${other.root}`);
  }
}

/** Undefined too of one that does not answer: nobody's opening depends on another's server. */
async function identitySeen({ store }: Place, below: string): Promise<string | undefined> {
  const seen = store?.identityBelow?.(below).catch(() => undefined);
  return seen !== undefined && (await endsWithin(seen, lookMs, systemClock())) ? await seen : undefined;
}

function refuseOverlap({ name, on, root, readOnly }: Place, places: Iterable<Place>): void {
  for (const other of places) {
    if (!on.some((one) => other.on.includes(one))) continue;
    if (isWithin(root, other.root) || isWithin(other.root, root))
      throw overlaps(name, root, `the store at ${other.root}`);
    if (root === other.root && !readOnly && !other.readOnly) throw taken(name, root, other.name);
  }
}

/** Undefined: the store is not in a directory of this machine, or its URI cannot be parsed. */
export const localDirectoryOf = (
  kinds: ReadonlyMap<string, StoreKind>,
  config: StoreConfig,
): LocalDirectory | undefined => kinds.get(schemeOf(config.uri))?.localDirectory?.(config);

/** On this machine. A root that does not exist is refused by the kind itself, in its own words. */
export const localPlace =
  (kind: Pick<StoreKind, 'localDirectory'>): PlaceOf =>
  async (config) => {
    const { path: wanted = '' } = kind.localDirectory?.(config) ?? {};
    return { on: ['this machine'], root: await realpath(wanted).catch(() => wanted) };
  };

/** Not around the state folder, nor in its mounts, nor where the embedded NFS server has its own store's volumes. */
export function beside(state: StateFolder, exported: string | undefined): Refuse {
  return ({ name, root }) => {
    const holdsState = root === state.path || isWithin(state.path, root);
    const inMounts = root === state.mounts || isWithin(root, state.mounts);
    if (holdsState || inMounts) throw overlaps(name, root, `the state folder ${state.path}`);
    if (exported === undefined || !(root === exported || isWithin(root, exported) || isWithin(exported, root))) return;
    throw overlaps(name, root, `what the embedded NFS server exports, ${exported}`);
  };
}

/**
 * On its server, as far as that can be told by the names it is given; what they hide is found out when it is open. In another
 * network the same name may be another server's.
 */
export const nfsPlace: PlaceOf = async ({ uri, options }) => {
  const { hosts, port = 2049, path, network = 'the host' } = parseOptions(uri, options);
  return { on: hosts.map((host) => `${host.toLowerCase()} port ${port} from ${network}`), root: path };
};

function overlaps(name: string, root: string, what: string): StowageError {
  return new StowageError(`store '${name}' at ${root} overlaps ${what}`, {
    code: 'invalid',
    reason: 'store-overlaps',
    action: 'Give it a directory of its own, beside the other and not inside or above it.',
  });
}

function taken(name: string, root: string, other: string): StowageError {
  return new StowageError(`store '${name}' cannot be in ${root}: store '${other}' is already there`, {
    code: 'exists',
    reason: 'store-place-taken',
    action: `Use store '${other}', or give this one a directory of its own. To only read the same one: readOnly=true.`,
  });
}
