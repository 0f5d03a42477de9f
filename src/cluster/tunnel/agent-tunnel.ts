import type { RequestListener } from 'node:http';
import { createBackOff } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { configMaps, endpointSlices } from '#wire/kube/resources.ts';
import type { ConfigMap, EndpointSlice } from '#wire/kube/types.ts';
import { createWatchedObject, type WatchedObject } from '#wire/kube/watched-object.ts';
import { leaderObjectNames, podPath, serverNames } from '../names.ts';
import { createPodCache, type RequestedPod } from '../pods/pod-cache.ts';
import type { PodAnswer } from '../pods/pod-handler.ts';
import { sleepOrWake } from '../sleep-or-wake.ts';
import { askLeader, connectToLeader, type LeaderAddress, Refusal } from './leader-connection.ts';
import { serveLeader } from './leader-requests.ts';

/** An agent's connection to the leader, which sends its requests through it. The agent reconnects for as long as it runs. */
export interface AgentTunnel extends AsyncDisposable {
  readonly isConnected: boolean;
  /** Undefined if the leader did not answer in time. Mounting must not depend on the answer: it has to work without a controller. */
  pod(pod: RequestedPod, signal: AbortSignal): Promise<PodAnswer | undefined>;
}

export interface AgentTunnelOptions {
  /** May read the leader's EndpointSlice and ConfigMap. */
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly log: Log;
  /** Stowage's own namespace. */
  readonly namespace: string;
  /** Contains this pod's token for the controller; the kubelet renews it. */
  readonly tokenFile: string;
  /** This agent's REST API, with the permissions of the owner of its socket. */
  readonly api: RequestListener;
  readonly random?: () => number;
}

/** Short, since the start of a pod waits for the answer. */
const podRequestMs = 2_000;
/** A connection that lasted this long resets the backoff. */
const stableMs = 30_000;

/** Never throws, and must not affect the rest of the agent: mounting works without a controller. */
export function startAgentTunnel(options: AgentTunnelOptions): AgentTunnel {
  const { client, clock, namespace, random = Math.random } = options;
  const log = options.log.with({ part: 'controller-link' });
  const closing = new AbortController();
  const { signal } = closing;
  const watchOptions = { client, clock, namespace, random };
  const slice = createWatchedObject({ ...watchOptions, resource: endpointSlices, name: leaderObjectNames.slice });
  const authority = createWatchedObject({ ...watchOptions, resource: configMaps, name: leaderObjectNames.authority });
  const [servername] = serverNames(namespace);
  const backOff = createBackOff({ firstMs: 250, maxMs: 15_000, random });
  let isConnected = false;
  let wake = Promise.withResolvers<void>();

  const currentLeader = (): LeaderAddress | undefined => leaderAddressOf(slice, authority, servername);

  const pods = createPodCache({
    clock,
    log,
    leader: currentLeader,
    ask: async (to, pod) => {
      const path = podPath.format(pod.namespace, pod.name);
      const text = await askLeader({ ...to, clock, tokenFile: options.tokenFile }, path, podRequestMs, signal);
      const { uid, hostUsers } = JSON.parse(text) as Partial<PodAnswer>;
      if (typeof uid === 'string' && typeof hostUsers === 'boolean') return { uid, hostUsers };
      throw new Refusal('the answer does not have the expected form');
    },
  });

  /** Connects and serves until the connection is lost, or the leader changes. */
  async function serveUntilLost(leader: LeaderAddress): Promise<void> {
    const leaderChange = new AbortController();
    using _ = slice.onChange(() => {
      // A leader that removed its address may still answer for a moment, so only another address is a reason to disconnect.
      const current = currentLeader();
      if (current !== undefined && (current.host !== leader.host || current.port !== leader.port)) leaderChange.abort();
    });
    const endOfService = AbortSignal.any([signal, leaderChange.signal]);
    const stream = await connectToLeader({ ...leader, clock, tokenFile: options.tokenFile }, endOfService);
    log.info('connected to the controller', { host: leader.host, port: leader.port });
    isConnected = true;
    pods.markReachable();
    try {
      await serveLeader({ stream, clock, log, api: options.api }, endOfService);
    } finally {
      isConnected = false;
    }
  }

  async function serveOnce(leader: LeaderAddress): Promise<void> {
    const startedAt = clock.elapsed();
    try {
      await serveUntilLost(leader);
      if (!signal.aborted) log.info('the connection to the controller ended', { host: leader.host, port: leader.port });
    } catch (error) {
      if (!signal.aborted)
        log.warn('could not connect to the controller', { host: leader.host, port: leader.port, error });
      if (!(error instanceof Refusal)) pods.markUnreachable(leader);
    }
    if (clock.elapsed() - startedAt >= stableMs) backOff.reset();
  }

  async function stayConnected(): Promise<void> {
    let lastLeader = '';
    while (!signal.aborted) {
      wake = Promise.withResolvers<void>();
      const leader = currentLeader();
      if (leader === undefined) {
        await sleepOrWake(clock, Number.POSITIVE_INFINITY, wake.promise, signal);
        continue;
      }
      const text = JSON.stringify(leader);
      // The leader or its certificate has changed, so earlier failures do not count.
      if (text !== lastLeader) backOff.reset();
      lastLeader = text;
      await serveOnce(leader);
      const hasChanged = JSON.stringify(currentLeader()) !== text;
      if (!hasChanged) await sleepOrWake(clock, backOff.next(), wake.promise, signal);
    }
  }

  const subscriptions = [slice, authority].map((one) => one.onChange(() => wake.resolve()));
  const scope = { signal, log };
  const tasks = Promise.all([slice.run(scope), authority.run(scope), stayConnected()]);
  return {
    get isConnected() {
      return isConnected;
    },
    pod: (pod, asking) => pods.get(pod, asking),
    [Symbol.asyncDispose]: async () => {
      closing.abort();
      for (const one of subscriptions) one[Symbol.dispose]();
      await tasks;
    },
  };
}

/** Undefined if there is no leader, or its authority is not published. */
function leaderAddressOf(
  slice: WatchedObject<EndpointSlice>,
  authority: WatchedObject<ConfigMap>,
  servername: string,
): LeaderAddress | undefined {
  const ready = slice.object?.endpoints?.find(({ conditions }) => conditions?.ready !== false);
  const host = ready?.addresses[0];
  const port = slice.object?.ports?.find(({ name }) => name === leaderObjectNames.port)?.port;
  const ca = authority.object?.data?.[leaderObjectNames.authorityKey];
  return host === undefined || port === undefined || ca === undefined ? undefined : { host, port, servername, ca };
}
