import type { Clock } from '#base/clock.ts';
import type { Operation, StoreConfig } from './model.ts';
import type { Records, Store } from './ports.ts';

/**
 * Which store lies where. What we have on record of a store is worth nothing when another one lies in its place: the
 * name means another directory now, or the disk is not mounted and its empty mount point is all there is.
 */
export interface StoreIdentities {
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
      // Whatever opened it has compared its identity: of its addresses, the next change may leave only the new ones.
      if (isKnownPlace(config)) return keep(placeKey(config.name), placeOf(config));
      records.transaction(() => {
        if (settings.get(placeKey(config.name)) !== undefined) {
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

const placeOf = ({ uri }: StoreConfig): string => uri.replace(/\?.*$/s, '');

/** Also by other addresses of one server, as long as one of them stays: what lies there says itself which store it is. */
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
