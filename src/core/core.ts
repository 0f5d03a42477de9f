import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { type Adoptions, createAdoptions } from './adoption.ts';
import { type Catalogue, createCatalogue } from './catalogue.ts';
import { type ClientTable, createClients } from './clients.ts';
import { type ContainerReferences, createContainerReferences } from './container-references.ts';
import type { ContainerEngine } from './containers.ts';
import { createDeletions, type Deletions } from './deletion.ts';
import { createEngineMounts, type EngineMounts } from './engine-mounts.ts';
import { createEphemerals, type Ephemerals } from './ephemeral.ts';
import { stowageError } from './errors.ts';
import { createEvents, type Events } from './events.ts';
import type { MaintenanceTask } from './maintenance.ts';
import type { NodeName, VolumeId } from './model.ts';
import { type CheckMountHealth, createMountHealth } from './mount-health.ts';
import { createMounts, type Mounts } from './mounts.ts';
import { createOperations, type Operations } from './operations.ts';
import { createPendingEngineRequests, type PendingEngineRequests } from './pending-engine-requests.ts';
import { isShared as isSharedPlacement } from './placement.ts';
import { createPluginNames, type PluginNames } from './plugin-names.ts';
import type { Mounter, ProcessMarks, Records, StoreKind } from './ports.ts';
import { createProvision, type Provision } from './provision.ts';
import { createRemappedUsers } from './remapped-users.ts';
import { createSpaceReclaimer, type SpaceReclaimer } from './space-reclaimer.ts';
import type { RecoverStore } from './store-entries.ts';
import { createStoreIdentities } from './store-identity.ts';
import { createStoreLimits } from './store-limits.ts';
import { createStoreLiveness, type StoreLiveness } from './store-liveness.ts';
import { createStoreRecovery } from './store-recovery.ts';
import { type ConfiguredStores, createStores, type Stores } from './stores.ts';
import { createTokens, type Tokens } from './tokens.ts';
import { createUseAdmin, type UseAdmin } from './use-admin.ts';
import type { Step } from './volume-steps.ts';
import { createVolumes, type Volumes } from './volumes.ts';

/** The use cases: all that front ends and controllers may use of core. */
export interface Core {
  readonly instance: string;
  readonly node: NodeName;
  readonly mounter: Pick<Mounter, 'unable'>;
  readonly stores: ConfiguredStores;
  readonly liveness: Pick<StoreLiveness, 'findSilent' | 'rooms' | 'denialOf'>;
  readonly catalogue: Catalogue;
  readonly volumes: Volumes;
  readonly provision: Provision;
  readonly deletions: Deletions;
  readonly adoptions: Adoptions;
  readonly mounts: Mounts;
  /** Lists the mounts of this machine with their health. */
  readonly mountHealth: CheckMountHealth;
  readonly ephemerals: Ephemerals;
  readonly uses: UseAdmin;
  readonly pluginNames: PluginNames;
  readonly engineRequests: Pick<PendingEngineRequests, 'note'>;
  readonly engineMounts: EngineMounts;
  readonly references: ContainerReferences;
  readonly operations: Operations;
  readonly tokens: Tokens;
  readonly events: Events;
  /** Responses to requests with an idempotency key, kept for a day. */
  readonly idempotentResponses: Pick<Records['idempotentResponses'], 'get' | 'put'>;
  /** Periodic tasks: reopening stores, renewing use records, emptying the trash, dropping old idempotency keys. */
  readonly maintenance: readonly MaintenanceTask[];
  close(): Promise<void>;
}

/** What `createCore` returns. Front ends and controllers get it as `Core`; tests inspect its records and stores. */
export interface WholeCore extends Core {
  readonly stores: Stores;
  readonly records: Pick<Records, 'idempotentResponses' | 'transaction' | 'volumes'>;
}

const responseRetentionMs = 86_400_000;
const maintenanceEveryMs = 30_000;
/** Longer than any deadline inside the tasks. A task that reaches it lacks a deadline of its own. */
const taskDeadlineMs = 600_000;

const maintenanceTask = (name: string, run: MaintenanceTask['run'], deadlineMs = taskDeadlineMs): MaintenanceTask => ({
  name,
  run,
  deadlineMs,
  everyMs: maintenanceEveryMs,
});
const pruneResponses =
  ({ records, clock }: Pick<CoreParts, 'records' | 'clock'>): MaintenanceTask['run'] =>
  async () =>
    records.idempotentResponses.prune(clock.now() - responseRetentionMs);
const unending = new AbortController().signal;

export interface CoreParts {
  readonly records: Records;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly mounter: Mounter;
  readonly clients: ClientTable;
  readonly mountsFolder: string;
  /** Where volumes are mounted for container engines. */
  readonly publishedFolder: string;
  readonly engines: readonly ContainerEngine[];
  readonly instance: string;
  readonly epoch: string;
  /** Changes when the machine reboots. Undefined: the platform does not tell. */
  readonly boot: string | undefined;
  /** The lock marks of this process and of its predecessors. */
  readonly marks?: ProcessMarks;
  readonly node: NodeName;
  readonly clock: Clock;
  readonly log: Log;
}

export function createCore(parts: CoreParts): WholeCore {
  const { records, mounter, instance, node, clock, log } = parts;
  const events = createEvents(parts.epoch, clock);
  const clients = createClients(parts.clients);
  const operations = createOperations({ records, events, clock, log });
  // The only dependency cycle: recovering a store uses stores.
  const deferred: { stores?: Stores; reclaim?: SpaceReclaimer; references?: ContainerReferences } = {};
  const storesLater = (): Stores => {
    if (deferred.stores === undefined) throw new Error('stores are used before they are created');
    return deferred.stores;
  };
  const referencesLater = (): ContainerReferences => {
    if (deferred.references === undefined) throw new Error('container references are used before they are created');
    return deferred.references;
  };
  const liveness = createStoreLiveness({ clock, stores: storesLater });
  const catalogue = createCatalogue({ records, liveness, stores: storesLater, instance });
  const stagingPathOf = (id: VolumeId): string => `${parts.mountsFolder}/${id}`;
  const engineMounts: EngineMounts = createEngineMounts({
    records,
    mounter,
    operations,
    clock,
    log,
    node,
    folder: parts.publishedFolder,
    mounts: () => mounts,
    references: referencesLater,
    stagingPathOf,
    remapped: createRemappedUsers({ engines: parts.engines, kinds: parts.kinds, clients, stores: storesLater, clock }),
  });
  const mounts: Mounts = createMounts({
    ...parts,
    clients,
    stores: storesLater,
    catalogue,
    operations,
    events,
    engineMounts: () => engineMounts,
    references: referencesLater,
  });
  const steps: Record<string, Step> = {};
  const identities = createStoreIdentities({ records, clock });
  const recoverStoreFromRecords = createStoreRecovery({
    records,
    operations,
    catalogue,
    steps,
    log,
    identities,
    stores: storesLater,
    boot: parts.boot,
  });
  const recoverStore: RecoverStore = async (store, config, scope) => {
    await recoverStoreFromRecords(store, config, scope);
    deferred.reclaim?.schedule(store.name);
  };
  const context = { instance, node, marks: parts.marks };
  const stores = createStores({
    ...parts,
    events,
    identities,
    context,
    recover: recoverStore,
    mountedVolumesOf: mounts.mountedVolumesOf,
  });
  const reclaim = createSpaceReclaimer({ stores, clock, log });
  Object.assign(deferred, { stores, reclaim });
  const pluginNames = createPluginNames({ records, stores, catalogue });
  const references = createContainerReferences({
    records,
    clock,
    log,
    engines: parts.engines,
    names: pluginNames,
    changed: (ids) => {
      const scope = { signal: unending, log };
      for (const id of ids) if (isOnSharedStore(id)) void mounts.updateUses(id, scope);
      void engineMounts.handleContainerChange(ids, scope);
    },
  });
  const isOnSharedStore = (id: VolumeId): boolean => {
    const store = records.volumes.byId(id)?.store;
    return stores.list().some(({ placement, config }) => isSharedPlacement(placement) && config.name === store);
  };
  deferred.references = references;
  const limits = createStoreLimits(records);
  const dependencies = {
    records,
    kinds: parts.kinds,
    stores,
    catalogue,
    operations,
    mounts,
    engineMounts,
    limits,
    events,
    clock,
    instance,
  };
  const engineRequests = createPendingEngineRequests(clock);
  const volumes = createVolumes(dependencies);
  const provision = createProvision({ stores, catalogue, volumes });
  const deletions = createDeletions({ ...dependencies, liveness, engineRequests, scheduleReclaim: reclaim.schedule });
  const adoptions = createAdoptions(dependencies);
  const uses = createUseAdmin(dependencies);
  const ephemerals = createEphemerals({ ...dependencies, volumes, deletions, log });
  Object.assign(steps, volumes.steps, deletions.steps, adoptions.steps, uses.steps);
  const tokens = createTokens(records, clock);
  const mountHealth = createMountHealth({
    records,
    mounts,
    clients,
    stagingPathOf,
    stores: storesLater,
    liveness,
    clock,
  });
  return {
    instance,
    node,
    mounter,
    stores,
    liveness,
    catalogue,
    volumes,
    deletions,
    adoptions,
    provision,
    mounts,
    mountHealth,
    ephemerals,
    uses,
    pluginNames,
    engineRequests,
    engineMounts,
    references,
    operations,
    tokens,
    events,
    idempotentResponses: records.idempotentResponses,
    records,
    maintenance: [
      maintenanceTask('open stores', (scope) => stores.retry(scope)),
      maintenanceTask('repair mounts', (scope) => mounts.repair(scope)),
      maintenanceTask('renew use records', (scope) => mounts.renewUses(scope)),
      maintenanceTask('clean up mounts of containers', (scope) => engineMounts.reconcile(scope)),
      maintenanceTask('delete ephemeral volumes', (scope) => ephemerals.reconcile(scope)),
      maintenanceTask('empty the trash', (scope) => deletions.purgeExpired(scope)),
      maintenanceTask('free space', async () => reclaim.resume()),
      maintenanceTask('drop old idempotency keys', pruneResponses(parts)),
    ],
    close: async () => {
      await references[Symbol.asyncDispose]();
      deletions.stop();
      await reclaim.stop();
      // No grace period here: callers that want one drain before they close core.
      await operations.drain(0);
      await stores.close();
      await engineMounts
        .close({ signal: unending, log })
        .catch((thrown: unknown) => log.info(stowageError(thrown).message));
      records.close();
    },
  };
}
