import type { Condition } from '#wire/kube/types.ts';
import type { Caches } from './caches.ts';
import { messageOf, reasons } from './health-messages.ts';
import type { Events } from './machinery/events.ts';
import { type MountProblems, mountProblemKinds } from './mount-problems.ts';
import { type ConditionValue, conditionTrue } from './store-conditions.ts';
import { type StoreObject, type StoreStatus, storeReference } from './store-object.ts';
import { anyNode, nodesToKeep, type UnhealthyNodes } from './unhealthy-nodes.ts';

export interface StoreHealthOptions {
  readonly mountProblems: Pick<MountProblems, 'all' | 'of' | 'onChange' | 'isConfirmed'>;
  readonly caches: Pick<Caches, 'stores' | 'nodes'>;
  readonly events: Events;
}

/** How the mounts of a store are, as its nodes see it: a server that the controller reaches may be out of a node's reach. */
export interface StoreHealth {
  /** Undefined: nobody knows whether it is as was said before. */
  of(store: string, before: StoreStatus | undefined): MountsReport | undefined;
  /** Called with the stores of which something else is known. */
  onChange(changed: (store: string) => void): void;
}

export interface MountsReport {
  readonly condition: ConditionValue;
  readonly nodes: UnhealthyNodes;
}

/** Those whose changes are Events on the store. Their actions differ: what is said of one is not said of the other. */
const reportedConditions = [
  { type: 'Ready', action: 'Monitor' },
  { type: 'MountsHealthy', action: 'MonitorMounts' },
] as const;

export function createStoreHealth({ mountProblems, caches, events }: StoreHealthOptions): StoreHealth {
  caches.stores.on({ changed: (object, before) => reportChanges(events, object, before) });
  return {
    of: (store, before) => {
      // That it was made anew concerns a mount, not the store.
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
        return { condition: { status: 'False', reason: reasons[first.kind], message }, nodes };
      }
      const isAnyKnown = [...caches.nodes.all()].some(({ metadata: { name = '' } }) => mountProblems.isConfirmed(name));
      return isAnyKnown && nodes.length === 0 ? { condition: conditionTrue('Well', ''), nodes } : undefined;
    },
    onChange: (changed) => {
      const concerned = new Map<string, string>();
      mountProblems.onChange((volumes) => {
        for (const { volume, store } of mountProblems.all()) if (volumes.has(volume)) concerned.set(volume, store);
        // Of those that are well again, what they were known by.
        for (const store of new Set([...volumes].flatMap((volume) => concerned.get(volume) ?? []))) changed(store);
        for (const volume of volumes) if (mountProblems.of(volume).length === 0) concerned.delete(volume);
      });
    },
  };
}

function reportChanges(events: Events, object: StoreObject, before: StoreObject): void {
  for (const { type, action } of reportedConditions) {
    const [now, then] = [statusOf(object, type), statusOf(before, type)];
    if (now?.status === then?.status || then === undefined) continue;
    const about = { regarding: storeReference(object), action } as const;
    if (now?.status === 'False')
      events.report({ ...about, type: 'Warning', reason: 'StoreIll', note: `${type}: ${now.message || now.reason}` });
    else if (now?.status === 'True')
      events.report({ ...about, type: 'Normal', reason: 'StoreWell', note: `${type}: healthy again.` });
  }
}

const isUnhealthy = (status: StoreStatus | undefined): boolean =>
  status?.conditions?.some((one) => one.type === 'MountsHealthy' && one.status === 'False') === true;

const statusOf = ({ status }: StoreObject, wanted: string): Condition | undefined =>
  status?.conditions?.find(({ type }) => type === wanted);
