import { randomUUID } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readConfigFile } from '#app/config.ts';
import { takeProcessMarks } from '#app/process-marks.ts';
import { instanceOf, prepareState, type StateFolder } from '#app/state-folder.ts';
import { storeConfigs } from '#app/store-configs.ts';
import { localDirectoryOf } from '#app/store-overlaps.ts';
import { type Clock, systemClock } from '#base/clock.ts';
import { type Log, type Scope, silentLog } from '#base/log.ts';
import type { ContainerEngine } from '#core/containers.ts';
import { type Core, createCore, type WholeCore } from '#core/core.ts';
import { closeCore, openCore } from '#core/lifecycle.ts';
import type { NodeName } from '#core/model.ts';
import type { StoreKind } from '#core/ports.ts';
import type { RepairLoop } from '#core/repair-loop.ts';
import { openRecords } from '#records/sqlite.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createFakeClients, type FakeClients } from './fakes/clients.ts';
import { createFakeMounts, type FakeMounts } from './fakes/mounts.ts';
import { createMemoryRecords, type MemoryRecords } from './fakes/records.ts';

type KeptRecords = Pick<MemoryRecords, 'open'>;

/** The use cases without a server: real stores, records in memory, and a mount table that only this process sees. */
export interface TestCore extends AsyncDisposable {
  readonly folder: string;
  /** The directory of the store that exists without configuration. */
  readonly storeFolder: string;
  readonly core: WholeCore;
  readonly kept: KeptState;
  /** Reads the configuration file again. */
  reload(): Promise<void>;
  /** Returns the mounts that stay because they are in use. */
  stop(): Promise<readonly string[]>;
}

/** State that outlives a restart: the records and the mount table. */
export interface KeptState {
  readonly records: KeptRecords;
  readonly mounts: FakeMounts;
  readonly clients: FakeClients;
  /** The directories of its stores. */
  roots: () => readonly string[];
}

export interface CoreOptions {
  /** A stopped core whose folder, records and mounts are used again, as after a restart. */
  readonly after?: TestCore | undefined;
  readonly config?: string;
  readonly clock?: Clock;
  /** Default: only the local store. */
  readonly kinds?: readonly StoreKind[];
  readonly engines?: readonly ContainerEngine[];
  readonly log?: Log;
  /** An existing folder with a file of records. The caller removes the folder. */
  readonly folder?: string;
  /** Records outside that folder. The caller disposes of them. */
  readonly records?: KeptRecords;
}

/** The limit for operations in progress during a stop. */
const drainMs = 10_000;

/** Resolves when every store is open or has failed to open. */
export async function startCore(options: CoreOptions = {}): Promise<TestCore> {
  const { after, clock = systemClock(), log = silentLog(), kinds: given = [createLocalStoreKind()] } = options;
  await using undo = new AsyncDisposableStack();
  const folder = after?.folder ?? options.folder ?? (await mkdtemp(join(tmpdir(), 'stowage-core-')));
  if (after === undefined && options.folder === undefined)
    undo.defer(() => rm(folder, { recursive: true, force: true }));
  const state = await prepareState(folder, join(folder, 's'));
  const newRecords = (): KeptRecords =>
    options.folder === undefined ? undo.use(createMemoryRecords()) : { open: () => openRecords(state.database) };
  const kept = after?.kept ?? newKept(state, options.records ?? newRecords());
  const records = kept.records.open();
  const ending = new AbortController();
  const scope: Scope = { signal: ending.signal, log };
  const kinds = new Map(given.map((kind) => [kind.scheme, kind]));
  const core = createCore({
    records,
    kinds,
    mounter: kept.mounts.mounter,
    clients: kept.clients,
    mountsFolder: state.mounts,
    publishedFolder: state.published,
    engines: options.engines ?? [],
    instance: instanceOf(records),
    epoch: randomUUID().slice(0, 8),
    boot: 'this one',
    marks: takeProcessMarks(records, folder),
    node: 'this-node' as NodeName,
    clock,
    log,
  });
  kept.roots = () => core.stores.list().flatMap(({ config }) => localDirectoryOf(kinds, config)?.path ?? []);
  const configure = async (): Promise<void> => {
    const { config } = options;
    const file = config === undefined ? undefined : await readConfigFile(config, true, kinds);
    const sources = { records, state, kinds, log, nfs: undefined, bare: false, cluster: undefined };
    await core.stores.configure(await storeConfigs(file, sources), file?.defaultStore, scope);
  };
  const life: { repairLoop?: RepairLoop; stopped?: Promise<readonly string[]> } = {};
  const repairable = (repairLoop: RepairLoop): void => {
    life.repairLoop = repairLoop;
  };
  const stop = async (): Promise<readonly string[]> => {
    life.repairLoop?.[Symbol.dispose]();
    await core.operations.drain(drainMs);
    try {
      return await closeCore(core, { signal: new AbortController().signal, log });
    } finally {
      ending.abort();
    }
  };
  await openCore({ core, clock, configure, onRepairLoop: repairable }, scope);
  // A start waits half a second for stores. On a busy machine they may need longer.
  while (isOpening(core)) await core.stores.retry(scope);
  const resources = undo.move();
  const started: TestCore = {
    folder,
    storeFolder: join(folder, 'stores', 'local'),
    core,
    kept,
    reload: configure,
    stop: () => {
      life.stopped ??= stop();
      return life.stopped;
    },
    [Symbol.asyncDispose]: async () => {
      await started.stop();
      await resources.disposeAsync();
    },
  };
  return started;
}

const isOpening = ({ stores }: Core): boolean =>
  stores.list().some(({ problem }) => problem?.reason === 'store-opening');

function newKept(state: StateFolder, records: KeptRecords): KeptState {
  const forbidden = (): readonly string[] => [state.path, ...kept.roots()];
  const mounts = createFakeMounts({ forbidden, published: state.published });
  const kept: KeptState = { records, mounts, clients: createFakeClients(mounts), roots: () => [] };
  return kept;
}
