import { isAccessDenied } from '#core/access-denial.ts';
import type { StowageError } from '#core/errors.ts';
import type { Condition } from '#wire/kube/types.ts';
import type { Controller } from './machinery/controller.ts';
import type { NodeStores } from './node-stores.ts';

/** The state of a store, as the controller or the agents observed it. */
export interface StoreObservation {
  readonly ready: ConditionValue;
  readonly reachable: ConditionValue;
  readonly capacity: { readonly total: bigint; readonly free: bigint } | undefined;
  readonly volumes: number | undefined;
}

export type ConditionValue = Required<Pick<Condition, 'status' | 'reason' | 'message'>>;

export const conditionTrue = (reason: string, message: string): ConditionValue => ({ status: 'True', reason, message });
export const conditionFalse = (reason: string, message: string, action: string | undefined): ConditionValue => ({
  status: 'False',
  reason,
  message: [message, action].filter((text) => text !== undefined && text !== '').join('. '),
});
/** `Denied` is only for denied access: the code `denied` also stands for a server that Stowage does not trust, and for read-only stores. */
const reasonOf = (problem: StowageError): string =>
  isAccessDenied(problem) ? 'Denied' : problem.code === 'denied' ? 'NotUsable' : camelCase(problem.code);
export const conditionForProblem = (problem: StowageError): ConditionValue =>
  conditionFalse(reasonOf(problem), problem.message, problem.action);
export const onlyReady = (ready: ConditionValue): StoreObservation => ({
  ready,
  reachable: ready,
  capacity: undefined,
  volumes: undefined,
});

/** `not-found` → `NotFound` */
const camelCase = (code: string): string =>
  code.replaceAll(/(?:^|-)([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** How many nodes with a problem the message names. */
const maxShownNodes = 5;

/** Summarizes the agents' reports about a store that each node has for itself. The store is ready if it is open on at least one node. */
export function observeOnNodes(name: string, nodeStores: Pick<NodeStores, 'all'>): StoreObservation {
  const all = [...nodeStores.all()].map(({ node, stores }) => ({ node, store: stores.get(name) }));
  const reported = all.flatMap(({ node, store }) => (store === undefined ? [] : { node, ...store }));
  const open = reported.filter(({ isOpen }) => isOpen);
  if (all.length === 0) return onlyReady({ status: 'Unknown', reason: 'NoAgents', message: 'No agent is connected.' });
  const problems = all.flatMap(({ node, store }) =>
    store?.isOpen === true ? [] : `${node}: ${store?.problem ?? 'its agent does not have the store yet'}`,
  );
  const more = problems.length > maxShownNodes ? [`and ${problems.length - maxShownNodes} more`] : [];
  const message = [
    `Open on ${open.length} of ${all.length} nodes`,
    ...problems.slice(0, maxShownNodes).toSorted(),
    ...more,
  ];
  const openCondition = conditionTrue('OnNodes', message.join('; '));
  const notOnAllNodes = { ...openCondition, status: 'False', reason: 'NotOnAllNodes' } as const;
  return {
    ready: open.length > 0 ? openCondition : { ...notOnAllNodes, reason: 'OnNoNode' },
    reachable: problems.length === 0 ? openCondition : notOnAllNodes,
    capacity:
      open.length === 0
        ? undefined
        : {
            total: open.reduce((sum, { totalBytes }) => sum + totalBytes, 0n),
            free: open.reduce((sum, { freeBytes }) => sum + freeBytes, 0n),
          },
    volumes: reported.reduce((sum, { volumes }) => sum + volumes, 0),
  };
}

/** Enqueues a store when it opens or closes on a node. Its sizes change all the time, and are read with the next periodic check. */
export function followNodeStores(
  nodeStores: Pick<NodeStores, 'all' | 'onChange'>,
  controller: Pick<Controller, 'add'>,
): void {
  const lastStates = new Map<string, string>();
  nodeStores.onChange(() => {
    const states = new Map([...lastStates.keys()].map((name) => [name, [] as string[]]));
    for (const { node, stores } of nodeStores.all())
      for (const { name, isOpen } of stores.values())
        states.set(name, [...(states.get(name) ?? []), `${node}${isOpen ? '' : '!'}`]);
    for (const [name, nodes] of states) {
      const text = nodes.toSorted().join(' ');
      if (lastStates.get(name) !== text) controller.add(name);
      lastStates.set(name, text);
    }
  });
}
