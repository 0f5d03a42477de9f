import { isDeepStrictEqual } from 'node:util';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Log, Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import type { Events } from './events.ts';
import type { StoreConfig } from './model.ts';
import type { Records } from './ports.ts';
import { type MountedVolumesOf, publishStoreEvent, refuseWhileMounted } from './store-changes.ts';
import type { StoreEntries, StoreEntry } from './store-entries.ts';
import { refusePolicy } from './store-facets.ts';
import type { StoreLookup } from './store-lookup.ts';

/** True if the configs differ at most in policies that core applies itself, so the store need not be reopened. */
function hasSameOpenOptions(a: StoreConfig, b: StoreConfig): boolean {
  const openOptionsOf = ({ uri, options, policy }: StoreConfig): unknown[] => [
    uri.replace(/\?.*$/s, ''),
    policy.readOnly,
    options,
  ];
  return isDeepStrictEqual(openOptionsOf(a), openOptionsOf(b));
}

/** Follows changes of the configuration. */
export interface StoreConfiguration {
  /**
   * Applies a new configuration. Does not touch stores that are open and unchanged. A store that fails to open stays
   * listed with its problem.
   */
  configure(configs: readonly StoreConfig[], preferred: string | undefined, scope: Scope): Promise<void>;
  /** Retries stores that could not be opened, and pending configuration changes. */
  retry(scope: Scope): Promise<void>;
}

export interface StoreConfigurationParts {
  readonly records: Pick<Records, 'stores'>;
  readonly events: Events;
  readonly mountedVolumesOf: MountedVolumesOf;
  readonly log: Log;
}

interface ConfigChange {
  readonly entry: StoreEntry;
  /** Undefined: the store is no longer configured. */
  readonly next: StoreConfig | undefined;
}

/** True for a store that was added through the API while the file was read, or that is being removed through the API. */
const isChangedByApi = ({ closeInProgress }: StoreEntry, next: StoreConfig | undefined): boolean =>
  next === undefined || (next.origin === 'api' && closeInProgress !== undefined);

interface Reopening {
  readonly entry: StoreEntry;
  readonly next: StoreConfig;
  /** The store was open before. */
  readonly wasOpen: boolean;
}

/** Runs `work` in parallel, writable stores first: of two stores with the same directory, the writable one owns the volumes. */
async function writableFirst<T>(
  all: readonly T[],
  configOf: (one: T) => StoreConfig,
  work: (one: T) => Promise<void>,
): Promise<void> {
  for (const readOnly of [false, true])
    await Promise.all(all.filter((one) => configOf(one).policy.readOnly === readOnly).map(work));
}

export function createStoreConfiguration(
  { records, events, mountedVolumesOf, log }: StoreConfigurationParts,
  entries: StoreEntries,
  lookup: Pick<StoreLookup, 'setPreferred'>,
): StoreConfiguration {
  const configurationLock = createKeyedLock();

  /** Applies one configuration at a time. That can take long, so adding, removing or checking a single store does not wait for it. */
  async function runExclusively(scope: Scope, work: () => Promise<void>): Promise<void> {
    using _ = await configurationLock.hold(['configuration'], scope.signal);
    await work();
  }

  /** Closes a store that must be reopened or removed. Returns the store to open in its place. */
  async function applyOrClose({ entry, next }: ConfigChange, scope: Scope): Promise<Reopening | undefined> {
    if (entry.config.origin === 'api' && isChangedByApi(entry, next)) return undefined;
    if (next !== undefined && hasSameOpenOptions(next, entry.config) && entry.closeInProgress === undefined) {
      const previousConfig = entry.config;
      if (entry.store !== undefined) refusePolicy(entry.store, next.policy);
      entry.config = next;
      if (previousConfig.uri !== next.uri) publishStoreEvent(events, 'changed', next);
      await entries.open(entry, scope);
      return undefined;
    }
    refuseWhileMounted(mountedVolumesOf, entry.config);
    const wasOpen = entry.store !== undefined;
    await entries.close(entry);
    if (next !== undefined) return { entry, next, wasOpen };
    entries.drop(entry);
    publishStoreEvent(events, 'removed', entry.config);
    return undefined;
  }

  /** Like `applyOrClose`, but a change that is not possible now stays pending, and every `retry` tries it again. */
  async function applyOrDefer(change: ConfigChange, scope: Scope): Promise<Reopening | undefined> {
    const { entry, next } = change;
    const previousPending = entry.pending;
    entry.pending = undefined;
    try {
      return await applyOrClose(change, scope);
    } catch (thrown) {
      const { message } = stowageError(thrown);
      const reason = next === undefined ? 'it is no longer in the configuration' : 'its options changed';
      entry.pending = { config: next, why: `${reason}; the change is pending: ${message}` };
      if (previousPending === undefined)
        log.warn('a changed configuration of the store cannot be applied yet', {
          store: entry.config.name,
          why: message,
        });
      return undefined;
    }
  }

  /** Closes all stores before opening any, since a directory may move from one store to another. */
  async function applyChanges(changes: readonly ConfigChange[], scope: Scope): Promise<void> {
    const reopenings = await Promise.all(changes.map((change) => applyOrDefer(change, scope)));
    const openings = reopenings.filter((opening) => opening !== undefined);
    await writableFirst(
      openings,
      ({ next }) => next,
      async ({ entry, next, wasOpen }) => {
        // The store was removed through the API meanwhile; `configure` adds a store with this name as a new one.
        if (entries.all.get(next.name) !== entry) return;
        if (await entries.replace(entry, next, wasOpen, scope)) publishStoreEvent(events, 'changed', next);
      },
    );
  }

  /** A store that was added through the API may have been removed while this waited for its turn. */
  const isStillConfigured = ({ origin, name, uri }: StoreConfig): boolean =>
    origin !== 'api' || records.stores.list().some((row) => row.name === name && row.uri === uri);

  return {
    configure: (requested, preferred, scope) =>
      runExclusively(scope, async () => {
        lookup.setPreferred(preferred);
        const configs = requested.filter(isStillConfigured);
        const configByName = new Map(configs.map((config) => [config.name as string, config]));
        const present = [...entries.all.values()];
        await applyChanges(
          present.map((entry) => ({ entry, next: configByName.get(entry.config.name) })),
          scope,
        );
        // Stores that were added through the API meanwhile, under a name that the configuration file has.
        const addedMeanwhile = [...entries.all.values()].flatMap((entry) => {
          const next = configByName.get(entry.config.name);
          const isAddedMeanwhile = entry.config.origin === 'api' && next !== undefined && next.origin !== 'api';
          return isAddedMeanwhile && !present.includes(entry) ? { entry, next } : [];
        });
        await applyChanges(addedMeanwhile, scope);
        const newConfigs = configs.filter((config) => !entries.all.has(config.name) && isStillConfigured(config));
        await writableFirst(
          newConfigs,
          (config) => config,
          async (config) => {
            await entries.addAndOpen(config, scope);
            publishStoreEvent(events, 'added', config);
          },
        );
      }),
    retry: (scope) =>
      runExclusively(scope, async () => {
        // Skip stores that are in use: draining them at every retry would block their users again and again.
        const changes = [...entries.all.values()].flatMap((entry) =>
          entry.pending !== undefined && entry.users <= entry.backgroundUsers
            ? { entry, next: entry.pending.config }
            : [],
        );
        await applyChanges(changes, scope);
        await Promise.all([...entries.all.values()].map((entry) => entries.open(entry, scope)));
      }),
  };
}
