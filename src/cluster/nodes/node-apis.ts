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
  /** A change that is asked for twice with the same one happens once. */
  readonly requestId?: string;
}

/** The REST APIs of a cluster's nodes. */
export interface NodeApis {
  /** Those that there should be an agent on, whether or not it can be asked. */
  names(): readonly string[];
  /** The parsed answer, in bounded time. Throws what the agent said, or that it cannot be asked. */
  ask(node: string, request: NodeRequest, scope: Scope): Promise<unknown>;
  /** Where a running pod is. Undefined: there is no such pod. Throws 'conflict' where the pod has no address. */
  pod(pod: PodName, scope: Scope): Promise<PodLocation | undefined>;
}

export interface NodeAnswers<T> {
  readonly answers: readonly { readonly node: string; readonly answer: T }[];
  readonly unreached: readonly UnreachedNode[];
}

/** At a time, and for one page. */
export const nodesAtOnce = 32;

/** In the order of their names, after the one that the page before ended with. */
export function nodesAfter(apis: NodeApis, after: string | undefined): readonly string[] {
  const all = [...apis.names()].sort();
  return after === undefined ? all : all.filter((name) => name > after);
}

/** The same question to all of these. One that does not answer keeps the others from nothing. */
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
