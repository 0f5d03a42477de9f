import { readFileSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { dirname } from 'node:path';
import { systemClock } from '#base/clock.ts';
import { type Log, silentLog } from '#base/log.ts';
import { startAgentTunnel } from '#cluster/tunnel/agent-tunnel.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { fromKubeconfig } from '#wire/kube/config.ts';

/**
 * Runs the agent's connection to the controller and nothing else. Arguments: `KUBECONFIG NAMESPACE TOKEN-FILE`. Prints
 * the connection's log.
 */
const [kubeconfig = '', namespace = '', tokenFile = ''] = process.argv.slice(2);
const clock = systemClock();
const config: unknown = JSON.parse(readFileSync(kubeconfig, 'utf8'));
const access = await fromKubeconfig({ config, folder: dirname(kubeconfig), clock, env: {} });
const say = (message: string, facts?: object): void => {
  process.stdout.write(
    `${message} ${JSON.stringify(facts ?? {}, (_, value: unknown) => (value instanceof Error ? value.message : value))}\n`,
  );
};
const log: Log = { ...silentLog(), info: say, warn: say, error: say, with: () => log };
const api: RequestListener = (request, response) => response.end(JSON.stringify({ asked: request.url }));
const client = createKubeClient({ access, clock, userAgent: 'test' });
const link = startAgentTunnel({ client, clock, log, namespace, tokenFile, api });
process.once('SIGTERM', () => void link[Symbol.asyncDispose]().then(() => process.exit()));
