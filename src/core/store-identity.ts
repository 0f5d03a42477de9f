import type { Clock } from '#base/clock.ts';
import type { Operation, StoreConfig } from './model.ts';
import type { Records, Store } from './ports.ts';

/**
 * Remembers the location and the identity of each store. Our records of a store are invalid if another store is at its location: the
 * name refers to another directory now, or the disk is not mounted and only its empty mount point is there.
 */
export interface StoreIdentities {
  /** The identity of the store at this location when it was last open. */
  known(config: StoreConfig): string | undefined;
  /** If the store has another location now, drops our records of its volumes: they are other volumes, even if names are equal. */
  forgetOtherPlace(config: StoreConfig): void;
  remember(config: StoreConfig, store: Store): void;
  /** Accepts whatever store is at the location next. */
  forget(name: string): void;
}

const elsewhere: Operation['error'] = {
  code: 'conflict',
  reason: 'store-moved',
  message: 'the store has another location now, so the interrupted operation was not continued',
  action: 'Repeat the request if it is still wanted.',
};

export function createStoreIdentities({
  records,
  clock,
}: {
  readonly records: Records;
  readonly clock: Clock;
}): StoreIdentities {
  const { settings } = records;
  const placeKey = (name: string): string => `place of ${name}`;
  const identityKey = (name: string): string => `identity of ${name}`;
  const isKnownPlace = (config: StoreConfig): boolean =>
    isSamePlace(settings.get(placeKey(config.name)), placeOf(config));

  function keep(key: string, value: string): void {
    if (settings.get(key) !== value) settings.set(key, value);
  }

  return {
    known: (config) => (isKnownPlace(config) ? settings.get(identityKey(config.name)) || undefined : undefined),
    forgetOtherPlace: (config) => {
      // Opening compared the identity, so remember the current addresses: a later change may keep only the new ones.
      if (isKnownPlace(config)) return keep(placeKey(config.name), placeOf(config));
      records.transaction(() => {
        if (settings.get(placeKey(config.name)) !== undefined) {
          records.volumes.forgetStore(config.name);
          for (const operation of records.operations.unfinished()) {
            if (operation.store === config.name) records.operations.end(operation.id, 'failed', clock.now(), elsewhere);
          }
        }
        keep(placeKey(config.name), placeOf(config));
        // Clear the old identity, in case opening fails before the new one is known.
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

const placeOf = ({ uri }: StoreConfig): string => uri.replace(/\?.*$/s, '');

/** Also true for other addresses of one server, as long as one address stays: the store's identity is compared anyway. */
function isSamePlace(before: string | undefined, now: string): boolean {
  if (before === undefined || before === now) return before === now;
  const [one, other] = [partsOf(before), partsOf(now)];
  return one.where === other.where && one.hosts.some((host) => other.hosts.includes(host));
}

function partsOf(place: string): { readonly hosts: readonly string[]; readonly where: string } {
  const [, scheme = '', hosts = '', port = '', path = ''] = /^([^:]*):\/\/(.*?)(:\d+)?(\/.*)?$/s.exec(place) ?? [];
  const named = hosts.toLowerCase().split(',');
  return { hosts: named.filter((host) => host !== ''), where: `${scheme} ${port} ${path}` };
}
