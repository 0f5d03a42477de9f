import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { createTokenReviews } from '#cluster/auth/token-reviews.ts';
import { accessCacheMs, createUserAccess } from '#cluster/auth/user-access.ts';
import { audiences } from '#cluster/names.ts';
import { createClusterNodes } from '#cluster/nodes/cluster-nodes.ts';
import type { NodeApis } from '#cluster/nodes/node-apis.ts';
import { locatePod } from '#cluster/pods/pod-location.ts';
import type { Agents } from '#controllers/agents.ts';
import type { Core } from '#core/core.ts';
import type { Principal } from '#front/rest/principal.ts';
import type { StatusJson } from '#front/rest/schemas.ts';
import { createRestServer } from '#front/rest/server.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { statusOf } from './status.ts';
import { version } from './version.ts';

export interface ClusterApiOptions {
  readonly core: Core;
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
  readonly agents: Agents;
  /** The nodes of the cluster, with and without an agent. */
  readonly nodes: () => readonly string[];
}

export interface ClusterApi extends AsyncDisposable {
  handle(request: IncomingMessage, response: ServerResponse): void;
}

/** For read requests to nodes: a node that does not answer must not delay a list. */
const nodeReadTimeoutMs = 5_000;

/** The API of a cluster: for users that Kubernetes authorizes, over the volumes of the controller and of all nodes. */
export async function startClusterApi(parts: ClusterApiOptions): Promise<ClusterApi> {
  const { core, client, clock, log, signal, agents } = parts;
  const startedAt = clock.now();
  const reviews = createTokenReviews({ client, clock, audience: audiences.users, cacheMs: accessCacheMs });
  const names = (): readonly string[] => [...new Set([...parts.nodes(), ...agents.nodes()])].sort();
  const apis: NodeApis = {
    names,
    ask: (node, request, scope) =>
      agents.call(node, request.method === 'GET' ? { ...request, deadlineMs: nodeReadTimeoutMs } : request, scope),
    pod: (pod, scope) => locatePod(client, clock, pod, scope),
  };
  const status = async (principal: Principal): Promise<StatusJson> => {
    const about = { core, startedAt, ready: true, addresses: [], sockets: [], state: '', config: undefined };
    const found = await statusOf({ ...about, plugins: { sockets: [] } }, principal);
    const connected = new Set(agents.nodes());
    // The controller's own process and files are not shown.
    return {
      ...found,
      pid: null,
      state: null,
      config: null,
      agents: names().map((node) => ({ node, connected: connected.has(node) })),
    };
  };
  const rest = createRestServer({
    core,
    clock,
    log,
    version,
    signal,
    status,
    isReady: () => true,
    nodes: createClusterNodes(apis),
    authorizer: createUserAccess({ client, clock, reviews, log }),
    // Only nodes have these.
    doctor: async () => [],
    dataPaths: { list: async () => [], upgrade: async () => [] },
  });
  await rest.ready();
  return { handle: rest.handle, [Symbol.asyncDispose]: () => rest.close(0) };
}
