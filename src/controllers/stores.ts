import { isDeepStrictEqual } from 'node:util';
import type { Scope } from '#base/log.ts';
import { bytesOf, quantityOf } from '#base/quantity.ts';
import { isAccessDenied } from '#core/access-denial.ts';
import type { Core } from '#core/core.ts';
import type { StowageError } from '#core/errors.ts';
import type { CheckStep, StoreConfig } from '#core/model.ts';
import { opensInController, placementOf } from '#core/placement.ts';
import type { StoreKind } from '#core/ports.ts';
import { schemeOf } from '#core/store-scheme.ts';
import type { Condition } from '#wire/kube/types.ts';
import type { ControllerContext } from './controller-context.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import { storeLabel } from './names.ts';
import type { NodeStores } from './node-stores.ts';
import { type ClassState, reconcileClass } from './store-class.ts';
import {
  type ConditionValue,
  conditionFalse,
  conditionForProblem,
  conditionTrue,
  followNodeStores,
  observeOnNodes,
  onlyReady,
  type StoreObservation,
} from './store-conditions.ts';
import type { MountsReport, StoreHealth } from './store-health.ts';
import { configsOf, type StoreObject, type StoreStatus, storeObjects, storeReference } from './store-object.ts';
import type { UnhealthyNodes } from './unhealthy-nodes.ts';

export interface StoresController extends Controller {
  /** Resolves when the core is configured for the first time. Until then it knows no volume. */
  whenConfigured(): Promise<void>;
}

export interface StoresOptions extends Omit<ControllerContext, 'provisioners'> {
  readonly core: Core;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  /** The agents' reports about stores that belong to nodes. */
  readonly nodeStores: Pick<NodeStores, 'all' | 'onChange'>;
  /** The health of the stores' mounts. Without it, there is no MountsHealthy condition. */
  readonly storeHealth?: StoreHealth;
}

const readyIntervalMs = 60_000;
const notReadyIntervalMs = 10_000;

/** Configures the core with the stores of the Store objects, and writes their status. */
export function createStoresController(options: StoresOptions): StoresController {
  const { client, clock, caches, events, core, kinds, nodeStores, storeHealth } = options;
  const firstConfiguration = Promise.withResolvers<void>();
  /** The last configuration of the core. Concurrent reconciles wait for it. */
  let lastConfigured: { readonly text: string; readonly work: Promise<void> } | undefined;
  let invalid: ReadonlyMap<string, StowageError> = new Map();

  const opensHere = (uri: string): boolean => opensInController(placementOf(kinds, uri));

  /** Configures all stores at once: a directory may move from one store to another. */
  async function configure(scope: Scope): Promise<void> {
    const objects = [...caches.stores.all()].filter(({ metadata }) => metadata.deletionTimestamp === undefined);
    const text = JSON.stringify(objects.map(({ metadata: { uid }, spec }) => [uid, spec.uri, spec.options]).sort());
    if (lastConfigured?.text !== text) lastConfigured = { text, work: configureCore(objects, scope) };
    const configured = lastConfigured;
    try {
      await configured.work;
    } catch (thrown) {
      if (lastConfigured === configured) lastConfigured = undefined;
      throw thrown;
    }
  }

  async function configureCore(objects: readonly StoreObject[], scope: Scope): Promise<void> {
    const found = configsOf(objects, kinds);
    ({ invalid } = found);
    // The agents of the nodes open the other stores.
    const ownConfigs = found.configs.filter(({ uri }) => opensHere(uri));
    await core.stores.configure(ownConfigs, undefined, scope);
    firstConfiguration.resolve();
  }

  async function observe(object: StoreObject, scope: Scope): Promise<StoreObservation> {
    const { name = '' } = object.metadata;
    const configError = invalid.get(name);
    if (configError !== undefined) return onlyReady(conditionFalse('Invalid', configError.message, configError.action));
    if (!opensHere(object.spec.uri)) return observeOnNodes(name, nodeStores);
    const check = await core.stores.check(name, scope);
    const { store, problem, pending } = core.stores.view(name);
    const failed = check.steps.find(({ ok }) => !ok);
    const reachable = failed === undefined ? conditionTrue('Answers', '') : notReachable(failed);
    const closed =
      problem === undefined ? conditionFalse('NotOpen', 'the store is not open yet', '') : conditionForProblem(problem);
    const open = conditionTrue('Open', pending === undefined ? '' : `A change is pending: ${pending}`);
    return {
      ready: store === undefined ? closed : failed === undefined ? open : reachable,
      reachable,
      capacity: sizesIn(check),
      volumes: core.catalogue.totals(name as StoreConfig['name']).volumes,
    };
  }

  async function reconcile(key: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    await configure(scope);
    const object = caches.stores.get(key);
    if (object === undefined || object.metadata.deletionTimestamp !== undefined) return done;
    const observation = await observe(object, scope);
    const classState = await reconcileClass(options, object, scope);
    const status = statusOf(object, observation, storeHealth?.reportOf(key, object.status), classState, clock.now());
    if (!isDeepStrictEqual(withoutNulls(status), withoutNulls(object.status ?? {})))
      await client.patch(
        storeObjects,
        { name: key, subresource: 'status' },
        { kind: 'merge', body: { status } },
        scope.signal,
      );
    if (classState?.ready === false) reportTakenClass(object, classState.takenName);
    return requeueAfter(observation.ready.status === 'False' ? notReadyIntervalMs : readyIntervalMs);
  }

  function reportTakenClass(object: StoreObject, name: string): void {
    const note = `StorageClass '${name}' already exists, and was not created for this store. Choose another name in spec.storageClass.`;
    const event = { type: 'Warning', reason: 'StorageClassTaken', action: 'Configure', note } as const;
    events.report({ ...event, regarding: storeReference(object) });
  }

  const controller = createController({
    name: 'stores',
    clock,
    reconcile,
    workers: 8,
    workersPerGroup: 1,
    // A silent store delays only itself.
    groupOf: (key) => key,
  });
  controller.follow(caches.stores);
  followNodeStores(nodeStores, controller);
  storeHealth?.onChange((store) => {
    if (caches.stores.get(store) !== undefined) controller.add(store);
  });
  controller.follow(caches.classes, ({ metadata: { name = '', labels } }) => [
    ...(labels?.[storeLabel] === undefined ? [] : [labels[storeLabel]]),
    ...[...caches.stores.all()].flatMap(({ metadata, spec }) =>
      spec.storageClass !== undefined && (spec.storageClass.name ?? metadata.name) === name
        ? (metadata.name ?? [])
        : [],
    ),
  ]);
  return {
    ...controller,
    run: async (scope, stop) => {
      const stopOrAbort = AbortSignal.any([scope.signal, stop]);
      // Without any Store object no key is reconciled, so configure here too.
      const configuring = caches.stores.whenSynced(stopOrAbort).then(() => configure(scope));
      configuring.catch((error: unknown) => {
        if (!stopOrAbort.aborted) scope.log.warn('could not configure the stores', { error });
      });
      await controller.run(scope, stop);
    },
    whenConfigured: () => firstConfiguration.promise,
  };
}

/** Denied access is not a network problem. */
const notReachable = ({ detail, action, reason = '' }: CheckStep): ConditionValue =>
  conditionFalse(isAccessDenied({ reason }) ? 'Denied' : 'NotReachable', detail, action);

const sizesIn = ({
  totalBytes,
  freeBytes,
}: {
  readonly totalBytes?: bigint | undefined;
  readonly freeBytes?: bigint | undefined;
}) => (totalBytes === undefined || freeBytes === undefined ? undefined : { total: totalBytes, free: freeBytes });

const mountsCondition = ({ status }: StoreObject): Condition | undefined =>
  status?.conditions?.find(({ type }) => type === 'MountsHealthy');

function statusOf(
  object: StoreObject,
  observation: StoreObservation,
  mounts: MountsReport | undefined,
  classState: ClassState,
  now: number,
): StoreStatus {
  const { generation = 0 } = object.metadata;
  const before = object.status;
  const condition = (type: string, value: ConditionValue): Condition => {
    const known = before?.conditions?.find((one) => one.type === type);
    const isSame = known?.status === value.status && known.lastTransitionTime !== undefined;
    const transitionTime = isSame ? known.lastTransitionTime : new Date(now).toISOString().replace(/\.\d+Z$/, 'Z');
    return {
      type,
      ...value,
      observedGeneration: generation,
      ...(transitionTime === undefined ? {} : { lastTransitionTime: transitionTime }),
    };
  };
  return {
    observedGeneration: generation,
    kind: schemeOf(object.spec.uri),
    conditions: [
      condition('Ready', observation.ready),
      condition('Reachable', observation.reachable),
      // Keep the old condition while the health is unknown.
      ...(mounts === undefined
        ? [mountsCondition(object) ?? []].flat()
        : [condition('MountsHealthy', mounts.condition)]),
      ...(classState === undefined ? [] : [condition('StorageClass', classCondition(classState))]),
    ],
    // Null removes the field in a merge patch.
    capacity:
      observation.capacity === undefined ? null : capacityOf(observation.capacity, before?.capacity ?? undefined),
    volumes: observation.volumes ?? null,
    unhealthyNodes: orNull(mounts === undefined ? before?.unhealthyNodes : mounts.nodes),
  };
}

const orNull = (nodes: UnhealthyNodes | null | undefined): UnhealthyNodes | null =>
  nodes === undefined || nodes === null || nodes.length === 0 ? null : nodes;

/** The status without nulls, as the API server stores it. */
const withoutNulls = (status: StoreStatus): object =>
  Object.fromEntries(Object.entries(status).filter(([, value]) => value !== null && value !== undefined));

const classCondition = (classState: NonNullable<ClassState>): ConditionValue =>
  classState.ready
    ? conditionTrue('Made', '')
    : conditionFalse(
        'Taken',
        `StorageClass '${classState.takenName}' already exists, and was not created for this store`,
        'Choose another name.',
      );

/** Free space changes all the time, so changes of less than 1 % are not written. */
function capacityOf(
  { total, free }: { readonly total: bigint; readonly free: bigint },
  before: { readonly total: string; readonly free: string } | undefined,
): { readonly total: string; readonly free: string } {
  const exact = { total: quantityOf(total), free: quantityOf(free) };
  if (before?.total !== exact.total) return exact;
  const known = bytesOf(before.free) ?? 0n;
  const difference = known > free ? known - free : free - known;
  return difference * 100n < total ? before : exact;
}
