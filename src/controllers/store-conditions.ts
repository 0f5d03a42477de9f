import type { StowageError } from '#core/errors.ts';
import { isAccessDenied } from '#core/refusals.ts';
import type { Condition } from '#wire/kube/types.ts';
import type { Controller } from './machinery/controller.ts';
import type { NodeStores } from './node-stores.ts';

/** What is seen of a store. */
export interface Seen {
  readonly ready: Verdict;
  readonly reachable: Verdict;
  readonly capacity: { readonly total: bigint; readonly free: bigint } | undefined;
  readonly volumes: number | undefined;
}

export type Verdict = Required<Pick<Condition, 'status' | 'reason' | 'message'>>;

export const yes = (reason: string, message: string): Verdict => ({ status: 'True', reason, message });
export const no = (reason: string, message: string, action: string | undefined): Verdict => ({
  status: 'False',
  reason,
  message: [message, action].filter((text) => text !== undefined && text !== '').join('. '),
});
/** `Denied` is for denied access only: the code also stands for a server that Stowage does not trust, and for read-only places. */
const reasonOf = (problem: StowageError): string =>
  isAccessDenied(problem) ? 'Denied' : problem.code === 'denied' ? 'NotUsable' : words(problem.code);
export const saying = (problem: StowageError): Verdict => no(reasonOf(problem), problem.message, problem.action);
export const nothing = (ready: Verdict): Seen => ({
  ready,
  reachable: ready,
  capacity: undefined,
  volumes: undefined,
});

/** `not-found` → `NotFound` */
const words = (code: string): string => code.replaceAll(/(?:^|-)([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** Of those that have trouble. */
const shown = 5;

/** Of a store that every node has one of its own of: what their agents say, together. It is ready where one of them has it. */
export function seenOnNodes(name: string, nodeStores: Pick<NodeStores, 'all'>): Seen {
  const all = [...nodeStores.all()].map(({ node, stores }) => ({ node, store: stores.get(name) }));
  const known = all.flatMap(({ node, store }) => (store === undefined ? [] : { node, ...store }));
  const open = known.filter(({ isOpen }) => isOpen);
  if (all.length === 0) return nothing({ status: 'Unknown', reason: 'NoAgents', message: 'No agent is connected.' });
  const ill = all.flatMap(({ node, store }) =>
    store?.isOpen === true ? [] : `${node}: ${store?.problem ?? 'its agent does not have the store yet'}`,
  );
  const more = ill.length > shown ? [`and ${ill.length - shown} more`] : [];
  const message = [`Open on ${open.length} of ${all.length} nodes`, ...ill.slice(0, shown).toSorted(), ...more];
  const onAll = yes('OnNodes', message.join('; '));
  const notOnAll = { ...onAll, status: 'False', reason: 'NotOnAllNodes' } as const;
  return {
    ready: open.length > 0 ? onAll : { ...notOnAll, reason: 'OnNoNode' },
    reachable: ill.length === 0 ? onAll : notOnAll,
    capacity:
      open.length === 0
        ? undefined
        : {
            total: open.reduce((sum, { totalBytes }) => sum + totalBytes, 0n),
            free: open.reduce((sum, { freeBytes }) => sum + freeBytes, 0n),
          },
    volumes: known.reduce((sum, { volumes }) => sum + volumes, 0),
  };
}

/** Looks at a store when one of its nodes has it, or no longer. Its sizes change all the time, and wait for their turn. */
export function followNodes(nodeStores: Pick<NodeStores, 'all' | 'on'>, controller: Pick<Controller, 'add'>): void {
  const before = new Map<string, string>();
  nodeStores.on(() => {
    const now = new Map([...before.keys()].map((name) => [name, [] as string[]]));
    for (const { node, stores } of nodeStores.all())
      for (const { name, isOpen } of stores.values())
        now.set(name, [...(now.get(name) ?? []), `${node}${isOpen ? '' : '!'}`]);
    for (const [name, those] of now) {
      const text = those.toSorted().join(' ');
      if (before.get(name) !== text) controller.add(name);
      before.set(name, text);
    }
  });
}
