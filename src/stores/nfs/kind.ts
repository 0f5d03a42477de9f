import type { Clock } from '#base/clock.ts';
import { systemClock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import type { Source, StoreConfig, StorePolicy } from '#core/model.ts';
import type { Store, StoreContext, StoreKind } from '#core/ports.ts';
import { readIdentity } from '../shelf/identity.ts';
import { createDirectoryLayout } from '../shelf/layout-directory.ts';
import { createParts } from '../shelf/parts.ts';
import { createMarks } from '../shelf/reading.ts';
import { createVerbs, layoutTraits } from '../shelf/verbs.ts';
import { type CheckParts, checkNfs } from './check.ts';
import { createSharedChecks } from './check-shared.ts';
import { type Connect, createConnect } from './connect.ts';
import { type NfsOptions, optionHelp, parseOptions } from './options.ts';
import { openNfsPlace } from './place.ts';
import { createUses } from './uses.ts';

/** Volumes as directories of an NFS export: `nfs://server/export/path`. */
export function createNfsStoreKind(
  clock: Clock = systemClock(),
  connect: Connect = createConnect(clock),
  anew: () => Connect = () => createConnect(clock),
): StoreKind {
  const ways: Ways = { clock, connect, anew, shared: createSharedChecks() };
  return {
    scheme: 'nfs',
    options: optionHelp,
    refuse: ({ uri, options }) => void parseOptions(uri, options),
    open: async (config, policy, context, scope) => {
      try {
        scope.signal.throwIfAborted();
        return await open(config, policy, context, ways, scope);
      } catch (cause) {
        throw stowageError(cause);
      }
    },
    probe: async (config, { readOnly }, scope) => {
      const options = parseOptions(config.uri, config.options);
      return await checked(ways, config, { options, store: config.name, readOnly }, scope);
    },
  };
}

interface Ways {
  readonly clock: Clock;
  /** Shares its connections among stores. */
  readonly connect: Connect;
  /** Shares with nobody, and knows nothing of before. */
  readonly anew: () => Connect;
  readonly shared: ReturnType<typeof createSharedChecks>;
}

const checked = (
  { clock, connect, anew, shared }: Ways,
  { uri, options: given }: StoreConfig,
  about: Pick<CheckParts, 'options' | 'store' | 'readOnly'>,
  scope: Scope,
): ReturnType<Store['check']> => {
  // With one source port there can be no second connection.
  const isSingle = typeof about.options.sourcePorts === 'number';
  const check = (signal: AbortSignal) =>
    checkNfs({ ...about, clock, connect: isSingle ? connect : anew() }, { ...scope, signal });
  const same = JSON.stringify([about.store, uri, given, about.readOnly]);
  return shared(same, check, scope.signal).catch((cause: unknown) => {
    throw stowageError(cause);
  });
};

async function open(
  config: StoreConfig,
  { readOnly }: StorePolicy,
  context: StoreContext,
  ways: Ways,
  scope: Scope,
): Promise<Store> {
  const options = parseOptions(config.uri, config.options);
  const store = config.name;
  const { clock, connect } = ways;
  const place = await openNfsPlace({ options, store, context, clock, connect, readOnly }, scope);
  const { uid, gid, mode, pathTemplate } = options;
  const layout = createDirectoryLayout({
    ...{ place, clock, make: (path) => place.files.mkdir(path, { mode, uid, gid }) },
    source: (path) => sourceOf(config, options, place.root, path),
    paths: pathTemplate,
  });
  const parts = createParts(place, layout, clock);
  return {
    ...{ kind: 'nfs', reach: 'anywhere', readOnly, shared: true, ...layoutTraits(parts) },
    check: (at) => checked(ways, config, { options, store, readOnly }, at),
    identityBelow: async (path) => (await readIdentity(place.files, `${place.root}/${path}/.stowage/store.json`))?.uuid,
    ping: ({ signal }) =>
      place.session.nfs
        .null({ signal, deadlineMs: Math.min(options.timeout, pingMs) })
        .catch((cause: unknown) => Promise.reject(place.failure(cause, `asking the server of store ${store}`))),
    ...createVerbs(parts, readOnly),
    ...(readOnly ? {} : { ...createMarks(parts), uses: createUses(parts, place) }),
  };
}

const pingMs = 5_000;

/** What a client needs to know of the store's options, as the administrator wrote them. */
const forClients = [
  ...['port', 'mountport', 'sourceport', 'uid', 'gid', 'squash', 'timeout', 'retries', 'soft', 'hard'],
  ...['rsize', 'wsize', 'nconnect', 'tls', 'network'],
];

function sourceOf(
  { options: given }: StoreConfig,
  { hosts, path, port }: NfsOptions,
  root: string,
  at: string,
): Source {
  const options = Object.fromEntries(Object.entries(given).filter(([key]) => forClients.includes(key)));
  return {
    ...{ kind: 'nfs', hosts, path: `${path === '/' ? '' : path}${at.slice(root.length)}` },
    options: { ...options, ...(port === undefined ? {} : { port: `${port}` }) },
  };
}
