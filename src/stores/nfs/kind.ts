import type { Clock } from '#base/clock.ts';
import { systemClock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import type { Source, StoreConfig, StorePolicy } from '#core/model.ts';
import type { Store, StoreContext, StoreKind } from '#core/ports.ts';
import { createDirectoryLayout } from '../shelf/layout-directory.ts';
import { createParts } from '../shelf/parts.ts';
import { createMarks } from '../shelf/reading.ts';
import { createVerbs, layoutTraits } from '../shelf/verbs.ts';
import { type CheckParts, checkNfs } from './check.ts';
import { type Connect, createConnect } from './connect.ts';
import { type NfsOptions, optionHelp, parseOptions } from './options.ts';
import { openNfsPlace } from './place.ts';
import { createUses } from './uses.ts';

/** Volumes as directories of an NFS export: `nfs://server/export/path`. */
export function createNfsStoreKind(clock: Clock = systemClock(), connect: Connect = createConnect(clock)): StoreKind {
  return {
    scheme: 'nfs',
    options: optionHelp,
    refuse: ({ uri, options }) => void parseOptions(uri, options),
    open: async (config, policy, context, scope) => {
      try {
        scope.signal.throwIfAborted();
        return await open(config, policy, context, { clock, connect }, scope);
      } catch (cause) {
        throw stowageError(cause);
      }
    },
    probe: async (config, { readOnly }, scope) => {
      const options = parseOptions(config.uri, config.options);
      return await checked({ options, store: config.name, clock, connect, readOnly }, scope);
    },
  };
}

const checked = (parts: CheckParts, scope: Scope): ReturnType<Store['check']> =>
  checkNfs(parts, scope).catch((cause: unknown) => {
    throw stowageError(cause);
  });

async function open(
  config: StoreConfig,
  { readOnly }: StorePolicy,
  context: StoreContext,
  { clock, connect }: { readonly clock: Clock; readonly connect: Connect },
  scope: Scope,
): Promise<Store> {
  const options = parseOptions(config.uri, config.options);
  const store = config.name;
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
    check: (at) => checked({ options, store, clock, connect, readOnly }, at),
    ...createVerbs(parts, readOnly),
    ...(readOnly ? {} : { ...createMarks(parts), uses: createUses(parts, place) }),
  };
}

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
