import type { Clock } from '#base/clock.ts';
import { systemClock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { NfsQuota } from '#base/nfs-mount.ts';
import { endsWithin } from '#base/wait.ts';
import { stowageError } from '#core/errors.ts';
import type { Source, StoreConfig, StorePolicy } from '#core/model.ts';
import type { ProcessMarks, Store, StoreContext } from '#core/ports.ts';
import type { FileHandle } from '#wire/nfs3/index.ts';
import { readIdentity } from '../file-store/identity.ts';
import { createDirectoryLayout } from '../file-store/layout-directory.ts';
import { createChangeMarks } from '../file-store/read-verbs.ts';
import { createVerbContext } from '../file-store/verb-context.ts';
import { createVerbs, type FileStore, type FileStoreKind, layoutTraits } from '../file-store/verbs.ts';
import { type CheckParts, checkNfs } from './check.ts';
import { createChownToGroup } from './chown-to-group.ts';
import { type Connect, createConnect, identityOf, type Session } from './connect.ts';
import { nfsFailure } from './failures.ts';
import { newProcessMark } from './lock-marks.ts';
import { errorContextOf, type NfsStoreRoot, openNfsStoreRoot, shortDeadlineMs } from './open-store-root.ts';
import { type NfsOptions, optionHelp, parseOptions } from './options.ts';
import type { ProbeLimits } from './probe.ts';
import { createRemoveLeftovers, type RemoveLeftovers } from './probe-leftovers.ts';
import { createQuotas } from './quotas.ts';
import { createSharedChecks } from './shared-checks.ts';
import { createUses } from './uses.ts';
import { createWriteAccessCheck } from './write-access.ts';

/** Volumes as directories of an NFS export: `nfs://server/export/path`. */
export function createNfsStoreKind(
  clock: Clock = systemClock(),
  connect: Connect = createConnect(clock),
  createSeparateConnect: () => Connect = () => createConnect(clock),
): FileStoreKind {
  const removeLeftovers = createRemoveLeftovers(clock);
  const kindParts: KindParts = {
    clock,
    connect,
    createSeparateConnect,
    shared: createSharedChecks(),
    removeLeftovers,
    marks: { own: newProcessMark(), dead: [] },
    held: new Set(),
  };
  return {
    scheme: 'nfs',
    placement: 'anywhere',
    options: optionHelp,
    offers: { enforcement: 'an NFS store without client=host', singleUser: 'an NFS store with squash=all' },
    clientName: ({ options }) => (options['client'] === 'host' ? 'host' : 'built-in data path'),
    validate: ({ uri, options }) => void parseOptions(uri, options),
    open: async (config, policy, context, scope) => {
      try {
        scope.signal.throwIfAborted();
        return await open(config, policy, context, kindParts, scope);
      } catch (cause) {
        throw stowageError(cause);
      }
    },
    probe: async (config, { readOnly }, scope, from) => {
      const given = parseOptions(config.uri, config.options);
      const options = from === undefined ? given : { ...given, network: from };
      return await runCheck(kindParts, config, { options, store: config.name, readOnly }, scope);
    },
  };
}

interface KindParts {
  readonly clock: Clock;
  /** Stores share its connections. */
  readonly connect: Connect;
  /** Creates a `Connect` with its own connections and no earlier state. */
  readonly createSeparateConnect: () => Connect;
  readonly shared: ReturnType<typeof createSharedChecks>;
  readonly removeLeftovers: RemoveLeftovers;
  /** The marks of this process, unless the caller gives others. */
  readonly marks: ProcessMarks;
  readonly held: Set<string>;
}

const runCheck = (
  { clock, connect, createSeparateConnect, shared, removeLeftovers }: KindParts,
  { uri, options: given }: StoreConfig,
  checkOptions: Pick<CheckParts, 'options' | 'store' | 'readOnly'>,
  scope: Scope,
): ReturnType<Store['check']> => {
  // A single source port allows no second connection.
  const hasSinglePort =
    typeof checkOptions.options.sourcePorts === 'number' && checkOptions.options.network === given['network'];
  const checkKey = JSON.stringify([
    checkOptions.store,
    uri,
    given,
    checkOptions.options.network,
    checkOptions.readOnly,
  ]);
  const parts: Omit<CheckParts, 'connect'> = {
    ...checkOptions,
    clock,
    removeLeftovers: (...checked) => removeLeftovers(checkKey, ...checked),
  };
  const check = (signal: AbortSignal) =>
    checkNfs({ ...parts, connect: hasSinglePort ? connect : createSeparateConnect() }, { ...scope, signal });
  return shared(checkKey, check, scope.signal).catch((cause: unknown) => {
    throw stowageError(cause);
  });
};

async function open(
  config: StoreConfig,
  { readOnly }: StorePolicy,
  context: StoreContext,
  kindParts: KindParts,
  scope: Scope,
): Promise<FileStore> {
  const options = parseOptions(config.uri, config.options);
  const store = config.name;
  const { clock, connect, held } = kindParts;
  const marks = context.marks ?? kindParts.marks;
  const storeRoot = await openNfsStoreRoot({ options, store, context, clock, connect, readOnly, marks, held }, scope);
  const { uid, gid, mode, pathTemplate } = options;
  const quotas = createQuotas(storeRoot);
  const layout = createDirectoryLayout({
    storeRoot,
    clock,
    make: (path) => storeRoot.files.mkdir(path, { mode, uid, gid }),
    source: async (path, volume) => {
      const quota = readOnly ? undefined : await quotas.quotaOf(volume);
      return sourceOf({ options, readOnly, storeRoot, quota }, path, await storeRoot.files.handle(path));
    },
    paths: pathTemplate,
    // The system's NFS client does not enforce quotas.
    quotas: options.client === 'host' ? undefined : quotas,
  });
  const parts = createVerbContext(storeRoot, layout, clock);
  return {
    ...layoutTraits(parts),
    changedByOthers: readOnly ? {} : createChangeMarks(parts),
    sources: ['nfs'],
    ...(readOnly ? {} : { checkWritable: createWriteAccessCheck(storeRoot, options) }),
    // With squash=all a mount shows the requested group, so no file needs to change.
    ...(readOnly || options.squash === 'all' ? {} : { chownToGroup: createChownToGroup(storeRoot, options) }),
    check: (checkScope) => runCheck(kindParts, config, { options, store, readOnly }, checkScope),
    identityOfSubdirectory: async (path) =>
      (await readIdentity(storeRoot.files, `${storeRoot.root}/${path}/.stowage/store.json`))?.uuid,
    ping: ({ signal }) =>
      ping(storeRoot.session, { signal, deadlineMs: shortDeadlineMs(options) }, clock).catch((cause: unknown) =>
        Promise.reject(nfsFailure(cause, `asking the server of store ${store}`, errorContextOf(options, store))),
      ),
    ...createVerbs(parts, readOnly),
    ...(readOnly ? {} : { uses: createUses(parts, storeRoot) }),
  };
}

/** Without an answer after this time, check whether the server closes every connection at once. */
const hangUpCheckAfterMs = 500;
/** The server may have started to answer in the meantime. */
const answerGraceMs = 250;

/** Fails early if the server closes every connection at once, so that callers with short deadlines can distinguish that from silence. */
async function ping({ nfs, findHangUp }: Session, limits: ProbeLimits, clock: Clock): Promise<void> {
  const answer = nfs.null(limits);
  if (!(await endsWithin(answer, hangUpCheckAfterMs, clock))) {
    const hangUp = await Promise.race([findHangUp(limits.signal), endsWithin(answer, limits.deadlineMs, clock)]);
    if (hangUp instanceof Error && !(await endsWithin(answer, answerGraceMs, clock))) throw hangUp;
  }
  try {
    await answer;
  } catch (cause) {
    throw (await findHangUp(limits.signal)) ?? cause;
  }
}

interface SourceParts {
  readonly options: NfsOptions;
  readonly readOnly: boolean;
  readonly storeRoot: NfsStoreRoot;
  readonly quota: NfsQuota | undefined;
}

/** Everything that a client needs to mount the volume. */
function sourceOf(
  { options, readOnly, storeRoot, quota }: SourceParts,
  volumePath: string,
  handle: FileHandle,
): Source {
  const { root, session } = storeRoot;
  const { addresses, port } = session;
  const { hosts, path, client, mountPort, connections, sourcePorts, tls, network, squash, locks } = options;
  const { uid, gid } = identityOf(squash === 'none' ? { ...options, squash: 'all' } : options);
  return {
    kind: 'nfs',
    hosts,
    path: `${path === '/' ? '' : path}${volumePath.slice(root.length)}`,
    way: {
      client,
      addresses,
      port,
      mountPort,
      root: Buffer.from(handle).toString('base64'),
      connections,
      sourcePorts,
      tls,
      network,
      squash,
      uid,
      gid,
      softMs: options.hard ? undefined : options.timeout,
      retries: options.retries,
      sync: options.sync ? true : undefined,
      maxRead: options.maxRead,
      maxWrite: options.maxWrite,
      locks,
      readOnly,
      quota,
    },
  };
}
