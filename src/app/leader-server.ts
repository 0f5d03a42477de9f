import { isIP } from 'node:net';
import { hostname } from 'node:os';
import process from 'node:process';
import { aborted, untilAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { createAgentReviews } from '#cluster/auth/agent-reviews.ts';
import { maintainCredentials } from '#cluster/leader/credentials.ts';
import { maintainLeaderSlice, removeLeaderSlice } from '#cluster/leader/endpoint-slice.ts';
import { maintainLeaderEndpoints, removeLeaderEndpoints } from '#cluster/leader/endpoints.ts';
import { createPodHandler } from '#cluster/pods/pod-handler.ts';
import { createAgentAdmission } from '#cluster/server/agent-admission.ts';
import { createTlsServer, type RequestHandler, refuseUnknownPath, type TlsServer } from '#cluster/server/tls-server.ts';
import { createConnectedAgents } from '#cluster/tunnel/connected-agents.ts';
import type { Agents } from '#controllers/agents.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { allAddresses, listenTcp, parseListen } from './listen.ts';

export interface ListenAddress {
  readonly host: string;
  readonly port: number;
  /** The address that is announced, if it listens on all addresses. */
  readonly address: string;
  /** The pod that listens. The API server's proxy needs it. */
  readonly pod: string;
}

/** Undefined: the controller does not listen, and agents cannot connect. `podIp`, `pod`: the variables POD_IP and POD_NAME. */
export function listenAddress(
  listen: string | undefined,
  podIp: string | undefined,
  pod = process.env['POD_NAME'] || hostname(),
): ListenAddress | undefined {
  const at = parseListen(listen ?? 'none', allAddresses);
  if (at === undefined) return undefined;
  const isOne = isIP(at.host) !== 0 && !['0.0.0.0', '::'].includes(at.host);
  const address = podIp === undefined || podIp === '' ? (isOne ? at.host : '') : podIp;
  if (isIP(address) !== 0) return { ...at, address, pod };
  throw new StowageError('the advertised address of the controller is unknown', {
    code: 'invalid',
    reason: 'door-address-unknown',
    action: "Set POD_IP to the pod's address (status.podIP), or listen on one address: --listen 10.0.0.5:8443",
  });
}

export interface LeaderServerOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly namespace: string;
  /** Undefined: the controller does not listen. */
  readonly listenOn: ListenAddress | undefined;
  /** A Secret with a certificate that another program maintains. */
  readonly tlsSecret?: string | undefined;
  /** Handles the requests of users: all that are not from agents. */
  readonly handle?: ((agents: Agents) => RequestHandler) | undefined;
}

/** The leader's server for agents and users. */
export interface LeaderServer {
  readonly agents: Agents;
  /**
   * Accepts agents and users until `stop`, then withdraws the leader's address and closes. Ends at once with the scope's signal: a
   * new leader announces its own address.
   */
  run(scope: Scope, stop: AbortSignal): Promise<void>;
}

const closeGraceMs = 2_000;

export function createLeaderServer(options: LeaderServerOptions, { log }: Pick<Scope, 'log'>): LeaderServer {
  const { client, clock, namespace, listenOn, handle } = options;
  const agents = createConnectedAgents({ clock, log });
  const common = { client, clock, namespace };

  async function listen(tlsServer: TlsServer, at: ListenAddress): Promise<number> {
    await listenTcp(tlsServer.server, at);
    const address = tlsServer.server.address();
    return typeof address === 'object' && address !== null ? address.port : at.port;
  }

  async function serve(at: ListenAddress, scope: Scope, stop: AbortSignal): Promise<void> {
    const ending = new AbortController();
    const servingScope: Scope = { signal: AbortSignal.any([scope.signal, ending.signal]), log };
    const reviews = createAgentReviews(client, clock);
    const onUpgrade = createAgentAdmission({ reviews, agents, namespace, clock, log, signal: servingScope.signal });
    const podHandlerOptions = { ...common, log, reviews, signal: servingScope.signal };
    const tlsServer = createTlsServer({
      clock,
      onUpgrade,
      onRequest: createPodHandler(podHandlerOptions, handle?.(agents) ?? refuseUnknownPath),
    });
    const firstCredential = Promise.withResolvers<void>();
    const use: TlsServer['setCredential'] = (credential) => {
      tlsServer.setCredential(credential);
      firstCredential.resolve();
    };
    const stopOrAbort = AbortSignal.any([scope.signal, stop]);
    const maintaining = [
      maintainCredentials({ ...common, secret: options.tlsSecret, applyCredential: use }, servingScope),
    ];
    try {
      await untilAborted(firstCredential.promise, stopOrAbort);
      if (stopOrAbort.aborted) return;
      const sliceOptions = { ...common, address: at.address, port: await listen(tlsServer, at) };
      const endpointsOptions = { ...sliceOptions, pod: at.pod };
      maintaining.push(
        maintainLeaderSlice(sliceOptions, servingScope),
        maintainLeaderEndpoints(endpointsOptions, servingScope),
      );
      await aborted(stopOrAbort);
      ending.abort();
      await Promise.all(maintaining);
      // A process that lost the Lease must not change the address.
      if (!scope.signal.aborted)
        await Promise.all([removeLeaderSlice(sliceOptions, scope), removeLeaderEndpoints(endpointsOptions, scope)]);
    } finally {
      ending.abort();
      agents[Symbol.dispose]();
      await tlsServer.close(scope.signal.aborted ? 0 : closeGraceMs);
      await Promise.all(maintaining);
    }
  }

  return {
    agents,
    run: async (scope, stop) => {
      if (listenOn !== undefined) await serve(listenOn, scope, stop);
    },
  };
}
