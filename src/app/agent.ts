import process from 'node:process';
import { systemClock } from '#base/clock.ts';
import type { Folders } from '#base/folders.ts';
import type { UpOptions } from '#cli/io.ts';
import { type AgentTunnel, startAgentTunnel } from '#cluster/tunnel/agent-tunnel.ts';
import { StowageError } from '#core/errors.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { createClusterStores } from './cluster-stores.ts';
import { type MetricsText, serveHealth, serveMetrics } from './health.ts';
import { kubeAccess } from './kube-access.ts';
import { createLog, levelFrom } from './logger.ts';
import { resetDatabaseOfOtherNode } from './node-database.ts';
import { runServer, type ServerExtension } from './serve.ts';
import { version } from './version.ts';

const defaultKubeletFolder = '/var/lib/kubelet';
/** The token's path in the agent's pod. Its audience is the controller. */
const defaultTokenFile = '/var/run/secrets/stowage.dev/token';

/**
 * `stowage node --kubernetes`: the agent of a node. It serves volumes without the API server, too; it only learns the stores from it, and
 * writes nothing to it.
 */
export async function runAgent(
  options: UpOptions,
  folders: Folders,
  program: string,
  interrupted: AbortSignal,
): Promise<number> {
  const { env } = process;
  const log = createLog(levelFrom(options.logLevel), process.stderr);
  const clock = systemClock();
  const nodeName = options.nodeName ?? (env['NODE_NAME'] || undefined);
  if (nodeName === undefined) throw nodeNameRequired();
  const access = await kubeAccess({ kubeconfig: options.kubeconfig, env, clock });
  using client = createKubeClient({ access, clock, userAgent: `stowage-agent/${version}`, maxSockets: 8 });
  const namespace = options.namespace ?? access.namespace;
  const stores = await createClusterStores({ client, clock, log, state: folders.state });
  const ending = new AbortController();
  const scope = { signal: ending.signal, log };
  const watching = stores.watch(scope);
  let isServing = false;
  let metricsText: MetricsText | undefined;
  await using _health = await serveHealth(
    options.health,
    () => (isServing ? undefined : 'the agent is starting'),
    () => metricsText,
  );
  await using _metrics = serveMetrics(options.metrics, () => metricsText, { clock, log });
  await stores.whenKnown(interrupted);
  const deferred: { link?: AgentTunnel } = {};
  const extension: ServerExtension = {
    cluster: stores.configs,
    podUsers: async (pod, signal) => {
      const found = await deferred.link?.pod(pod, signal);
      if (found === undefined) return undefined;
      return found.hostUsers ? 'host' : 'own';
    },
    started: (running) => {
      isServing = true;
      const { metrics } = running;
      metricsText = { contentType: metrics.contentType, text: () => metrics.text(() => true, scope) };
      const { core, reload, api } = running;
      const apply = async (): Promise<readonly string[]> => {
        await reload();
        return core.stores.list().flatMap(({ config, pending }) => (pending === undefined ? [] : config.name));
      };
      const following = stores.follow(apply, scope);
      const tokenFile = env['STOWAGE_CONTROLLER_TOKEN_FILE'] || defaultTokenFile;
      const tunnel = startAgentTunnel({ client, clock, log, namespace, tokenFile, api });
      deferred.link = tunnel;
      return {
        [Symbol.asyncDispose]: async () => {
          isServing = false;
          await tunnel[Symbol.asyncDispose]();
          ending.abort();
          await following;
        },
      };
    },
  };
  try {
    await resetDatabaseOfOtherNode(folders, nodeName, log);
    return await runServer(asAgent(options, nodeName), folders, program, interrupted, extension);
  } finally {
    ending.abort();
    await watching;
  }
}

/** Without a configuration file and container engines, unless the options name them. */
const asAgent = (options: UpOptions, nodeName: string): UpOptions => ({
  config: 'none',
  plugins: 'none',
  dockerSocket: 'none',
  podmanSocket: 'none',
  kubelet: defaultKubeletFolder,
  ...options,
  nodeName,
  bare: true,
});

const nodeNameRequired = (): StowageError =>
  new StowageError('the name of the node is unknown', {
    code: 'invalid',
    reason: 'node-name-required',
    action: 'Set NODE_NAME to the name of the node (spec.nodeName of the pod), or pass --node-name NAME',
  });
