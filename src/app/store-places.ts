import { realpath } from 'node:fs/promises';
import { relative } from 'node:path';
import { StowageError } from '#core/errors.ts';
import type { StoreKind } from '#core/ports.ts';
import type { StateFolder } from './state-folder.ts';

const isWithin = (inner: string, outer: string): boolean => {
  const way = relative(outer, inner);
  return way !== '' && way !== '..' && !way.startsWith('../');
};

/**
 * Stores must not lie in each other, nor around the state folder or in its mounts: what one of them holds would be a volume of the other,
 * to be renamed and deleted as such. The same directory twice is the store's own business: it locks it.
 */
export function keepApart(kind: StoreKind, state: StateFolder): StoreKind {
  // By object, not by path: one directory can be open twice, once read-only.
  const places = new Set<{ readonly root: string }>();
  return {
    ...kind,
    open: async (config, policy, context, scope) => {
      const [wanted = ''] = localPath(config.uri);
      // A root that does not exist is refused by the kind itself, in its own words.
      const place = { root: await realpath(wanted).catch(() => wanted) };
      refuseOverlap(config.name, place.root, state, places);
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

function refuseOverlap(
  name: string,
  root: string,
  state: StateFolder,
  places: Iterable<{ readonly root: string }>,
): void {
  const holdsState = root === state.path || isWithin(state.path, root);
  const inMounts = root === state.mounts || isWithin(root, state.mounts);
  if (holdsState || inMounts) throw overlaps(name, root, `the state folder ${state.path}`);
  const other = [...places].find((place) => isWithin(root, place.root) || isWithin(place.root, root));
  if (other !== undefined) throw overlaps(name, root, `the store at ${other.root}`);
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
