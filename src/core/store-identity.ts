import type { Clock } from '#base/clock.ts';
import type { Operation, StoreConfig } from './model.ts';
import type { Records, Store } from './ports.ts';

/**
 * Which store lies where. What we have on record of a store is worth nothing when another one lies in its place: the
 * name means another directory now, or the disk is not mounted and its empty mount point is all there is.
 */
export interface Identities {
  /** What the store at that place called itself when it was last open. */
  known(config: StoreConfig): string | undefined;
  /** A name that now means another place: its volumes are not those we have on record, even where names are the same. */
  forgetOtherPlace(config: StoreConfig): void;
  remember(config: StoreConfig, store: Store): void;
  /** Whatever lies there from now on is the store. */
  forget(name: string): void;
}

const elsewhere: Operation['error'] = {
  code: 'conflict',
  reason: 'store-moved',
  message: 'the store lies somewhere else now, so what was interrupted in its old place is not done in the new one',
  action: 'Repeat the request if it is still wanted.',
};

export function createIdentities({ records, clock }: { readonly records: Records; readonly clock: Clock }): Identities {
  const { settings } = records;
  const placeKey = (name: string): string => `place of ${name}`;
  const identityKey = (name: string): string => `identity of ${name}`;
  const placeOf = ({ uri }: StoreConfig): string => uri.replace(/\?.*$/s, '');

  function keep(key: string, value: string): void {
    if (settings.get(key) !== value) settings.set(key, value);
  }

  return {
    known: (config) =>
      settings.get(placeKey(config.name)) === placeOf(config)
        ? settings.get(identityKey(config.name)) || undefined
        : undefined,
    forgetOtherPlace: (config) => {
      const before = settings.get(placeKey(config.name));
      if (before === placeOf(config)) return;
      records.transaction(() => {
        if (before !== undefined) {
          records.volumes.forgetStore(config.name);
          for (const operation of records.operations.unfinished()) {
            if (operation.store === config.name) records.operations.end(operation.id, 'failed', clock.now(), elsewhere);
          }
        }
        keep(placeKey(config.name), placeOf(config));
        // Not the old one's, should opening the new one fail before it has said its own.
        keep(identityKey(config.name), '');
      });
    },
    remember: (config, { identity }) => {
      if (identity !== undefined) keep(identityKey(config.name), identity);
    },
    forget: (name) => {
      keep(placeKey(name), '');
      keep(identityKey(name), '');
    },
  };
}
