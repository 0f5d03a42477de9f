import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, onTestFinished } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { type Scope, silentLog } from '#base/log.ts';
import { createAgentReviews } from '#cluster/auth/agent-reviews.ts';
import { type Credential, createCredential } from '#cluster/leader/certificate.ts';
import { audiences, leaderObjectNames, serverNames } from '#cluster/names.ts';
import { createAgentAdmission } from '#cluster/server/agent-admission.ts';
import { createTlsServer, type RequestHandler, type TlsServer } from '#cluster/server/tls-server.ts';
import { type AgentTunnel, startAgentTunnel } from '#cluster/tunnel/agent-tunnel.ts';
import { type ConnectedAgents, createConnectedAgents } from '#cluster/tunnel/connected-agents.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import type { TokenReview } from '#wire/kube/types.ts';
import { type FakeKubeApi, startKubeApi } from './fakes/kube-api.ts';

export const testNamespace = 'stowage-system';
const slices = `/apis/discovery.k8s.io/v1/namespaces/${testNamespace}/endpointslices`;
const maps = `/api/v1/namespaces/${testNamespace}/configmaps`;

export interface LeaderServer {
  readonly tlsServer: TlsServer;
  readonly agents: ConnectedAgents;
  readonly port: number;
  readonly credential: Credential;
}

/** For each test: an API server in memory, TLS servers of leaders, and agents that connect to the leader. */
export interface LeaderServers {
  api: FakeKubeApi;
  client: KubeClient;
  /** The node of each token that the API server reviewed. The token of an agent has a node; other tokens have none. */
  reviewed: string[];
  startServer(how?: {
    readonly clock?: Clock;
    readonly handle?: RequestHandler;
    readonly maxAnswerBytes?: number;
  }): Promise<LeaderServer>;
  /** Publishes the server's address as the leader's. */
  publishLeader(leader: LeaderServer, port?: number): void;
  /** Connects an agent with its API. */
  connectAgent(how: { readonly node?: string; readonly api: RequestListener; readonly clock?: Clock }): AgentTunnel;
  tokenFile: string;
}

export const scopeOf = (signal: AbortSignal = new AbortController().signal): Scope => ({ signal, log: silentLog() });

export function leaderServers(): LeaderServers {
  const it = {} as LeaderServers;
  let folder = '';
  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'stowage-leader-'));
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    it.api = await startKubeApi();
    onTestFinished(() => it.api[Symbol.asyncDispose]());
    it.client = createKubeClient({ access: it.api.access, clock: systemClock(), userAgent: 'test' });
    onTestFinished(() => it.client[Symbol.dispose]());
    it.reviewed = [];
    it.tokenFile = join(folder, 'token');
    it.api.intercept = ({ url }, response, body) => {
      if (url !== '/apis/authentication.k8s.io/v1/tokenreviews') return false;
      const { token } = (JSON.parse(body) as TokenReview).spec;
      it.reviewed.push(nodeOf(token));
      response.writeHead(201, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ metadata: {}, status: reviewOf(token) }));
      return true;
    };
  });

  it.startServer = async ({ clock = systemClock(), handle, maxAnswerBytes } = {}) => {
    const log = silentLog();
    const ending = new AbortController();
    const agents = createConnectedAgents({ clock, log, ...(maxAnswerBytes === undefined ? {} : { maxAnswerBytes }) });
    const reviews = createAgentReviews(it.client, systemClock());
    const about = { reviews, agents, namespace: testNamespace, clock, log, signal: ending.signal };
    const tlsServer = createTlsServer({ clock, onUpgrade: createAgentAdmission(about), onRequest: handle });
    const credential = createCredential(serverNames(testNamespace), Date.now());
    tlsServer.setCredential(credential);
    tlsServer.server.listen(0, '127.0.0.1');
    await once(tlsServer.server, 'listening');
    onTestFinished(async () => {
      ending.abort();
      agents[Symbol.dispose]();
      const closed = tlsServer.close(0);
      tlsServer.server.closeAllConnections();
      await closed;
    });
    return { tlsServer, agents, credential, port: (tlsServer.server.address() as AddressInfo).port };
  };
  it.publishLeader = ({ credential, port: own }, port = own) => {
    it.api.put(maps, { metadata: { name: leaderObjectNames.authority }, data: { 'ca.crt': credential.cert } } as never);
    it.api.put(slices, {
      metadata: { name: leaderObjectNames.slice },
      addressType: 'IPv4',
      endpoints: [{ addresses: ['127.0.0.1'], conditions: { ready: true } }],
      ports: [{ name: leaderObjectNames.port, port, protocol: 'TCP' }],
    } as never);
  };
  it.connectAgent = ({ node = 'node-1', api, clock = systemClock() }) => {
    writeFileSync(it.tokenFile, `${agentToken(node)}\n`);
    const { client, tokenFile } = it;
    const link = startAgentTunnel({
      client,
      clock,
      log: silentLog(),
      namespace: testNamespace,
      tokenFile,
      api,
      // Gives the shortest possible backoff.
      random: () => 0,
    });
    onTestFinished(() => link[Symbol.asyncDispose]());
    return link;
  };
  return it;
}

/** A token as Kubernetes projects it into an agent's pod. Without a node, it is a token that an attacker forged. */
export function agentToken(node: string, claims: object = {}): string {
  const all = { aud: [audiences.agents], exp: Math.floor(Date.now() / 1_000) + 3_600, node, ...claims };
  return ['{}', JSON.stringify(all), 'signature'].map((part) => Buffer.from(part).toString('base64url')).join('.');
}

function nodeOf(token: string): string {
  const claims = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()) as {
    readonly node: string;
  };
  return claims.node;
}

function reviewOf(token: string): TokenReview['status'] {
  const node = nodeOf(token);
  if (node === '') return { authenticated: false };
  return {
    authenticated: true,
    audiences: [audiences.agents],
    user: {
      username: `system:serviceaccount:${testNamespace}:stowage-agent`,
      extra: { 'authentication.kubernetes.io/node-name': [node] },
    },
  };
}

export interface CuttableProxy {
  readonly port: number;
  /** Stops forwarding data, and keeps connections open. */
  freeze(): void;
  cut(): void;
}

/** A proxy to a port of this machine. */
export async function startCuttableProxy(to: number): Promise<CuttableProxy> {
  const open = new Set<Socket>();
  let isFrozen = false;
  const listener = createServer((here) => {
    const there = connect(to, '127.0.0.1');
    for (const [one, other] of [
      [here, there],
      [there, here],
    ] as const) {
      open.add(one);
      one
        .on('error', () => undefined)
        .on('close', () => {
          open.delete(one);
          if (!isFrozen) other.destroy();
        });
      one.on('data', (chunk) => {
        if (!isFrozen) other.write(chunk);
      });
    }
  }).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const cut = (): void => {
    for (const socket of open) socket.destroy();
  };
  onTestFinished(() => {
    cut();
    listener.close();
  });
  return {
    port: (listener.address() as AddressInfo).port,
    freeze: () => {
      isFrozen = true;
    },
    cut,
  };
}
