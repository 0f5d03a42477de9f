import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import type { PodName } from '#core/check-places.ts';
import { stowageError } from '#core/errors.ts';
import type { Principal } from './principal.ts';
import type { Request, Route } from './route.ts';
import type { UnreachedJson } from './schemas.ts';
import { toldTo } from './told.ts';

export interface NodeRequest {
  readonly method: Route['method'];
  readonly path: string;
  readonly body?: object;
  /** A change that is asked for twice with the same one happens once. */
  readonly requestId?: string;
}

/** The REST APIs of a cluster's nodes. */
export interface Nodes {
  /** Those that there should be an agent on, whether or not it can be asked. */
  names(): readonly string[];
  /** The parsed answer, in bounded time. Throws what the agent said, or that it cannot be asked. */
  ask(node: string, request: NodeRequest, scope: Scope): Promise<unknown>;
  /** Where a running pod is. Undefined: there is no such pod. Throws 'conflict' where the pod has no address. */
  pod(pod: PodName, scope: Scope): Promise<PodLocation | undefined>;
}

export interface PodLocation {
  /** Another pod of the same name has another one. */
  readonly uid: string;
  readonly node: string;
  readonly address: string;
  /** It has the network of its node, and the node's address. */
  readonly hostNetwork: boolean;
}

export interface Asked<T> {
  readonly answers: readonly { readonly node: string; readonly answer: T }[];
  readonly unreached: readonly UnreachedJson[];
}

/** At a time, and for one page. */
export const nodesAtOnce = 32;

/** In the order of their names, after the one that the page before ended with. */
export function nodesAfter(nodes: Nodes, after: string | undefined): readonly string[] {
  const all = [...nodes.names()].sort();
  return after === undefined ? all : all.filter((name) => name > after);
}

/** The same question to all of these. One that does not answer keeps the others from nothing. */
export async function askEach<T>(
  nodes: Nodes,
  names: readonly string[],
  pathFor: string | ((node: string) => string),
  { principal, call }: Pick<Request<never, never, never>, 'principal' | 'call'>,
): Promise<Asked<T>> {
  const answers = new Map<string, T>();
  const unreached = new Map<string, UnreachedJson>();
  await eachBounded(names, nodesAtOnce, async (node) => {
    try {
      const path = typeof pathFor === 'string' ? pathFor : pathFor(node);
      answers.set(node, (await nodes.ask(node, { method: 'GET', path }, call)) as T);
    } catch (thrown) {
      unreached.set(node, { node, ...whyNot(principal, thrown) });
    }
  });
  call.signal.throwIfAborted();
  return {
    answers: names.flatMap((node) => (answers.has(node) ? [{ node, answer: answers.get(node) as T }] : [])),
    unreached: names.flatMap((node) => unreached.get(node) ?? []),
  };
}

function whyNot(principal: Principal, thrown: unknown): { readonly reason: string; readonly message: string } {
  const { reason, message } = toldTo(principal, stowageError(thrown), 'in the log of the controller.');
  return { reason, message };
}

interface ListOf<T> {
  readonly items: readonly T[];
}

/** A list that each node has of its own: a page is that of some nodes. */
export async function listOfNodes<T extends object>(
  nodes: Nodes,
  path: string,
  after: string | undefined,
  request: Pick<Request<never, never, never>, 'principal' | 'call'>,
): Promise<{ items: (T & { node: string })[]; next: string | null; unreached: UnreachedJson[] }> {
  const all = nodesAfter(nodes, after);
  const some = all.slice(0, nodesAtOnce);
  const { answers, unreached } = await askEach<ListOf<T>>(nodes, some, path, request);
  return {
    items: answers.flatMap(({ node, answer }) => answer.items.map((item) => ({ ...item, node }))),
    next: all.length > some.length ? (some.at(-1) ?? null) : null,
    unreached: [...unreached],
  };
}
