import type { Condition } from '#wire/kube/types.ts';
import type { Caches } from './caches.ts';
import { messageOf, reasons } from './health-messages.ts';
import type { Events } from './machinery/events.ts';
import { type Looks, mountProblemKinds } from './mount-problems.ts';
import { type Verdict, yes } from './store-conditions.ts';
import { type StoreObject, type StoreStatus, storeReference } from './store-object.ts';
import { anyNode, keptNodes, type UnhealthyNodes } from './unhealthy-nodes.ts';

export interface StoreHealthOptions {
  readonly looks: Pick<Looks, 'all' | 'of' | 'on' | 'isKnown'>;
  readonly caches: Pick<Caches, 'stores' | 'nodes'>;
  readonly events: Events;
}

/** How the mounts of a store are, as its nodes see it: a server that the controller reaches may be out of a node's reach. */
export interface StoreHealth {
  /** Undefined: nobody knows whether it is as was said before. */
  of(store: string, before: StoreStatus | undefined): MountsSeen | undefined;
  /** Called with the stores of which something else is known. */
  on(changed: (store: string) => void): void;
}

export interface MountsSeen {
  readonly verdict: Verdict;
  readonly nodes: UnhealthyNodes;
}

/** Those whose changes are Events on the store. Their actions differ: what is said of one is not said of the other. */
const watched = [
  { type: 'Ready', action: 'Monitor' },
  { type: 'MountsHealthy', action: 'MonitorMounts' },
] as const;

export function createStoreHealth({ looks, caches, events }: StoreHealthOptions): StoreHealth {
  caches.stores.on({ changed: (object, before) => tell(events, object, before) });
  return {
    of: (store, before) => {
      // That it was made anew concerns a mount, not the store.
      const problems = [...looks.all()].filter((one) => one.store === store && one.kind !== 'repaired');
      const worst = problems.toSorted((a, b) => mountProblemKinds.indexOf(a.kind) - mountProblemKinds.indexOf(b.kind));
      const [first] = worst;
      const nodes = keptNodes(
        problems.map(({ node }) => node),
        before?.unhealthyNodes ?? (isUnhealthy(before) ? anyNode : []),
        { looks, caches },
      );
      if (first !== undefined) {
        const message = messageOf(worst, 'for administrators');
        return { verdict: { status: 'False', reason: reasons[first.kind], message }, nodes };
      }
      const isAnyKnown = [...caches.nodes.all()].some(({ metadata: { name = '' } }) => looks.isKnown(name));
      return isAnyKnown && nodes.length === 0 ? { verdict: yes('Well', ''), nodes } : undefined;
    },
    on: (changed) => {
      const concerned = new Map<string, string>();
      looks.on((volumes) => {
        for (const { volume, store } of looks.all()) if (volumes.has(volume)) concerned.set(volume, store);
        // Of those that are well again, what they were known by.
        for (const store of new Set([...volumes].flatMap((volume) => concerned.get(volume) ?? []))) changed(store);
        for (const volume of volumes) if (looks.of(volume).length === 0) concerned.delete(volume);
      });
    },
  };
}

function tell(events: Events, object: StoreObject, before: StoreObject): void {
  for (const { type, action } of watched) {
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
