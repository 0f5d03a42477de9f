import type { Condition } from '#wire/kube/types.ts';
import type { Caches } from './caches.ts';
import { conditionReasons, messageOf } from './health-messages.ts';
import type { Events } from './machinery/events.ts';
import { type MountProblems, mountProblemKinds } from './mount-problems.ts';
import { type ConditionValue, conditionTrue } from './store-conditions.ts';
import { type StoreObject, type StoreStatus, storeReference } from './store-object.ts';
import { anyNode, nodesToKeep, type UnhealthyNodes } from './unhealthy-nodes.ts';

export interface StoreHealthOptions {
  readonly mountProblems: Pick<MountProblems, 'all' | 'problemsOf' | 'onChange' | 'isConfirmed'>;
  readonly caches: Pick<Caches, 'stores' | 'nodes'>;
  readonly events: Events;
}

/** The health of a store's mounts, as the nodes report it: a node may not reach a server that the controller reaches. */
export interface StoreHealth {
  /** Undefined if unknown; then keep the condition in the status. */
  reportOf(store: string, before: StoreStatus | undefined): MountsReport | undefined;
  /** Calls back with each store whose mount problems changed. */
  onChange(changed: (store: string) => void): void;
}

export interface MountsReport {
  readonly condition: ConditionValue;
  readonly nodes: UnhealthyNodes;
}

/** The conditions whose changes become Events on the store. Each has its own action, so their Events do not replace each other. */
const reportedConditions = [
  { type: 'Ready', action: 'Monitor' },
  { type: 'MountsHealthy', action: 'MonitorMounts' },
] as const;

export function createStoreHealth({ mountProblems, caches, events }: StoreHealthOptions): StoreHealth {
  caches.stores.on({ changed: (object, before) => reportChanges(events, object, before) });
  return {
    reportOf: (store, before) => {
      // A remount concerns the mount, not the store.
      const problems = [...mountProblems.all()].filter((one) => one.store === store && one.kind !== 'repaired');
      const worst = problems.toSorted((a, b) => mountProblemKinds.indexOf(a.kind) - mountProblemKinds.indexOf(b.kind));
      const [first] = worst;
      const nodes = nodesToKeep(
        problems.map(({ node }) => node),
        before?.unhealthyNodes ?? (isUnhealthy(before) ? anyNode : []),
        { mountProblems, caches },
      );
      if (first !== undefined) {
        const message = messageOf(worst, 'for administrators');
        return { condition: { status: 'False', reason: conditionReasons[first.kind], message }, nodes };
      }
      const isAnyConfirmed = [...caches.nodes.all()].some(({ metadata: { name = '' } }) =>
        mountProblems.isConfirmed(name),
      );
      return isAnyConfirmed && nodes.length === 0 ? { condition: conditionTrue('Well', ''), nodes } : undefined;
    },
    onChange: (changed) => {
      const storeByVolume = new Map<string, string>();
      mountProblems.onChange((volumes) => {
        for (const { volume, store } of mountProblems.all()) if (volumes.has(volume)) storeByVolume.set(volume, store);
        // `storeByVolume` still has the volumes that are healthy again.
        for (const store of new Set([...volumes].flatMap((volume) => storeByVolume.get(volume) ?? []))) changed(store);
        for (const volume of volumes) if (mountProblems.problemsOf(volume).length === 0) storeByVolume.delete(volume);
      });
    },
  };
}

function reportChanges(events: Events, object: StoreObject, before: StoreObject): void {
  for (const { type, action } of reportedConditions) {
    const [now, previous] = [conditionOf(object, type), conditionOf(before, type)];
    if (now?.status === previous?.status || previous === undefined) continue;
    const commonFields = { regarding: storeReference(object), action } as const;
    if (now?.status === 'False')
      events.report({
        ...commonFields,
        type: 'Warning',
        reason: 'StoreIll',
        note: `${type}: ${now.message || now.reason}`,
      });
    else if (now?.status === 'True')
      events.report({ ...commonFields, type: 'Normal', reason: 'StoreWell', note: `${type}: healthy again.` });
  }
}

const isUnhealthy = (status: StoreStatus | undefined): boolean =>
  status?.conditions?.some((one) => one.type === 'MountsHealthy' && one.status === 'False') === true;

const conditionOf = ({ status }: StoreObject, wanted: string): Condition | undefined =>
  status?.conditions?.find(({ type }) => type === wanted);
