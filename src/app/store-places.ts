import { realpath } from 'node:fs/promises';
import { relative } from 'node:path';
import { StowageError } from '#core/errors.ts';
import type { StoreKind } from '#core/ports.ts';
import type { StateFolder } from './state-folder.ts';

const isWithin = (inner: string, outer: string): boolean => {
  const way = relative(outer, inner);
  return way !== '' && way !== '..' && !way.startsWith('../');
};

interface Place {
  readonly name: string;
  readonly root: string;
  readonly readOnly: boolean;
}

/**
 * Stores must not lie in each other, nor around the state folder or in its mounts: what one of them holds would be a volume of the other,
 * to be renamed and deleted as such. One directory is one store, and as many as one likes that only read it. Another
 * Stowage in the same directory is the store's own business: it locks it.
 */
export function keepApart(kind: StoreKind, state: StateFolder): StoreKind {
  // By object, not by path: one directory can be open twice, once read-only.
  const places = new Set<Place>();
  return {
    ...kind,
    open: async (config, policy, context, scope) => {
      const [wanted = ''] = localPath(config.uri);
      // A root that does not exist is refused by the kind itself, in its own words.
      const root = await realpath(wanted).catch(() => wanted);
      const place = { name: config.name, root, readOnly: policy.readOnly };
      refuseOverlap(place, state, places);
      // Before it is open, so that two that are opened at once see each other.
      places.add(place);
      try {
        const store = await kind.open(config, policy, context, scope);
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

function refuseOverlap({ name, root, readOnly }: Place, state: StateFolder, places: Iterable<Place>): void {
  const holdsState = root === state.path || isWithin(state.path, root);
  const inMounts = root === state.mounts || isWithin(root, state.mounts);
  if (holdsState || inMounts) throw overlaps(name, root, `the state folder ${state.path}`);
  for (const other of places) {
    if (isWithin(root, other.root) || isWithin(other.root, root))
      throw overlaps(name, root, `the store at ${other.root}`);
    if (root === other.root && !readOnly && !other.readOnly) throw taken(name, root, other.name);
  }
}

/** None for a store that is elsewhere, or whose URI the store itself refuses. */
export function localPath(uri: string): string[] {
  try {
    const { protocol, pathname } = new URL(uri);
    return protocol === 'local:' ? [decodeURIComponent(pathname)] : [];
  } catch {
    return [];
  }
}

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
