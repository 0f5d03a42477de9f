import type { Clock } from '#base/clock.ts';
import type { Operation, StoreConfig } from './model.ts';
import type { Records, Store } from './ports.ts';

/**
 * Remembers the location and the identity of each store. Our records of a store are invalid if another store is at its location: the
 * name refers to another directory now, or the disk is not mounted and only its empty mount point is there.
 */
export interface StoreIdentities {
  /** The identity of the store at this location when it was last open. */
  identityOf(config: StoreConfig): string | undefined;
  /** If the store has another location now, drops our records of its volumes: they are other volumes, even if names are equal. */
  forgetOtherLocation(config: StoreConfig): void;
  remember(config: StoreConfig, store: Store): void;
  /** Forgets location and identity, so that the next open accepts any store. */
  forget(name: string): void;
}

const storeMovedError: Operation['error'] = {
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
  const locationKey = (name: string): string => `place of ${name}`;
  const identityKey = (name: string): string => `identity of ${name}`;
  const isKnownLocation = (config: StoreConfig): boolean =>
    isSameLocation(settings.get(locationKey(config.name)), locationOf(config));

  function saveSetting(key: string, value: string): void {
    if (settings.get(key) !== value) settings.set(key, value);
  }

  return {
    identityOf: (config) => (isKnownLocation(config) ? settings.get(identityKey(config.name)) || undefined : undefined),
    forgetOtherLocation: (config) => {
      // Opening compared the identity, so remember the current addresses: a later change may keep only the new ones.
      if (isKnownLocation(config)) return saveSetting(locationKey(config.name), locationOf(config));
      records.transaction(() => {
        if (settings.get(locationKey(config.name)) !== undefined) {
          records.volumes.forgetStore(config.name);
          for (const operation of records.operations.listUnfinished()) {
            if (operation.store === config.name)
              records.operations.end(operation.id, 'failed', clock.now(), storeMovedError);
          }
        }
        saveSetting(locationKey(config.name), locationOf(config));
        // Clear the old identity, in case opening fails before the new one is known.
        saveSetting(identityKey(config.name), '');
      });
    },
    remember: (config, { identity }) => {
      if (identity !== undefined) saveSetting(identityKey(config.name), identity);
    },
    forget: (name) => {
      saveSetting(locationKey(name), '');
      saveSetting(identityKey(name), '');
    },
  };
}

const locationOf = ({ uri }: StoreConfig): string => uri.replace(/\?.*$/s, '');

/** Also true for other addresses of one server, as long as one address stays: the store's identity is compared anyway. */
function isSameLocation(before: string | undefined, now: string): boolean {
  if (before === undefined || before === now) return before === now;
  const [one, other] = [parseLocation(before), parseLocation(now)];
  return one.rest === other.rest && one.hosts.some((host) => other.hosts.includes(host));
}

function parseLocation(location: string): { readonly hosts: readonly string[]; readonly rest: string } {
  const [, scheme = '', hosts = '', port = '', path = ''] = /^([^:]*):\/\/(.*?)(:\d+)?(\/.*)?$/s.exec(location) ?? [];
  const hostNames = hosts.toLowerCase().split(',');
  return { hosts: hostNames.filter((host) => host !== ''), rest: `${scheme} ${port} ${path}` };
}
