import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { pods } from '#wire/kube/resources.ts';
import type { Pod } from '#wire/kube/types.ts';
import { bearerOf, nodeOfAgent, type TokenReviews } from '../auth/token-reviews.ts';
import { podPath } from '../names.ts';
import { refuse } from '../problems.ts';
import type { RequestHandler } from '../server/tls-server.ts';

/** The data of a pod that the leader discloses to the agent of the pod's node: nothing beyond what CSI could pass to it. */
export interface PodAnswer {
  readonly uid: string;
  /** False if the pod has a user namespace of its own. */
  readonly hostUsers: boolean;
}

export interface PodHandlerOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly log: Log;
  readonly reviews: TokenReviews;
  readonly namespace: string;
  readonly signal: AbortSignal;
}

const answerMs = 5_000;

/**
 * Answers agents' requests for pods. Agents have no permission to read pods, since RBAC cannot restrict it to one node. Each agent may
 * request pods of the node that its token names. Other requests go to `next`.
 */
export function createPodHandler(options: PodHandlerOptions, next: RequestHandler): RequestHandler {
  const { client, clock, log, reviews, namespace } = options;

  async function readPod(podName: PodPath, signal: AbortSignal): Promise<Pod | undefined> {
    try {
      return await client.get(pods, { namespace: podName.namespace, name: podName.name }, signal);
    } catch (thrown) {
      if (reasonOf(thrown) === 'NotFound') return undefined;
      log.warn('the controller could not get a pod from Kubernetes', { error: thrown });
      throw podLookupFailed(thrown);
    }
  }

  async function answerRequest(request: IncomingMessage, response: ServerResponse, podName: PodPath): Promise<void> {
    using limit = clock.deadline(answerMs, options.signal);
    try {
      const scope = { signal: limit.signal, log };
      const { headers, socket } = request;
      const reviewed = await reviews.review(bearerOf(headers.authorization), scope, socket.remoteAddress ?? '');
      const node = nodeOfAgent(reviewed, namespace);
      const pod = await readPod(podName, limit.signal);
      // Do not reveal whether the pod exists on another node.
      if (pod === undefined || pod.spec?.nodeName !== node) throw podUnknown(podName);
      const podAnswer: PodAnswer = { uid: pod.metadata.uid ?? '', hostUsers: pod.spec.hostUsers !== false };
      response.writeHead(200, { 'content-type': 'application/json', 'cache-control': 'no-store' });
      response.end(JSON.stringify(podAnswer));
    } catch (thrown) {
      refuse(response, thrown);
    }
  }

  return (request, response) => {
    const podName = request.method === 'GET' ? podPathIn(request.url ?? '') : undefined;
    if (podName === undefined) next(request, response);
    else void answerRequest(request, response, podName);
  };
}

interface PodPath {
  readonly namespace: string;
  readonly name: string;
}

/** Kubernetes names need no percent-encoding. */
function podPathIn(url: string): PodPath | undefined {
  const [, namespace, name] = podPath.pattern.exec(url) ?? [];
  return namespace === undefined || name === undefined ? undefined : { namespace, name };
}

const podUnknown = ({ namespace, name }: PodPath): StowageError =>
  new StowageError(`there is no pod '${namespace}/${name}' on this node`, {
    code: 'not-found',
    reason: 'pod-unknown',
    action: 'Check the pod: kubectl get pod NAME --namespace NAMESPACE -o wide',
  });

const podLookupFailed = (cause: unknown): StowageError =>
  new StowageError('the controller could not get the pod from Kubernetes', {
    code: 'unavailable',
    reason: 'pod-unasked',
    cause,
    action: "Try again in a moment. If the problem persists, check the controller's log.",
  });
