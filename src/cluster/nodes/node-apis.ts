import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import type { PodName } from '#core/check-places.ts';
import { stowageError } from '#core/errors.ts';
import type { UnreachedNode } from '#front/rest/cluster-nodes.ts';
import type { PodLocation } from '../pods/pod-location.ts';

export interface NodeRequest {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly body?: object;
  /** The idempotency key: a repeated change with the same one happens once. */
  readonly requestId?: string;
}

/** The REST APIs of a cluster's nodes. */
export interface NodeApis {
  /** The nodes that should have an agent, whether or not it is connected. */
  names(): readonly string[];
  /** Returns the parsed answer, in bounded time. Throws the agent's error, or that the agent cannot be reached. */
  ask(node: string, request: NodeRequest, scope: Scope): Promise<unknown>;
  /** Locates a running pod. Undefined if there is no such pod. Throws 'conflict' if the pod has no address. */
  pod(pod: PodName, scope: Scope): Promise<PodLocation | undefined>;
}

export interface NodeAnswers<T> {
  readonly answers: readonly { readonly node: string; readonly answer: T }[];
  readonly unreached: readonly UnreachedNode[];
}

/** The number of nodes asked concurrently, and for one page. */
export const nodesAtOnce = 32;

/** The node names in order, after the last one of the previous page. */
export function nodesAfter(apis: NodeApis, after: string | undefined): readonly string[] {
  const all = [...apis.names()].sort();
  return after === undefined ? all : all.filter((name) => name > after);
}

/** Sends the same request to several nodes. A node that does not answer does not affect the others. */
export async function askNodes<T>(
  apis: NodeApis,
  names: readonly string[],
  pathFor: string | ((node: string) => string),
  scope: Scope,
): Promise<NodeAnswers<T>> {
  const answers = new Map<string, T>();
  const unreached = new Map<string, UnreachedNode>();
  await eachBounded(names, nodesAtOnce, async (node) => {
    try {
      const path = typeof pathFor === 'string' ? pathFor : pathFor(node);
      answers.set(node, (await apis.ask(node, { method: 'GET', path }, scope)) as T);
    } catch (thrown) {
      unreached.set(node, { node, error: stowageError(thrown) });
    }
  });
  scope.signal.throwIfAborted();
  return {
    answers: names.flatMap((node) => (answers.has(node) ? [{ node, answer: answers.get(node) as T }] : [])),
    unreached: names.flatMap((node) => unreached.get(node) ?? []),
  };
}
