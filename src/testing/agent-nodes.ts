import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { findAgentCall } from '#cluster/tunnel/agent-calls.ts';
import type { AgentRequest } from '#controllers/agents.ts';
import type { ErrorCode } from '#core/error-codes.ts';
import { relayed } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { type ControllerFixture, paths } from './controller-fixture.ts';
import { aCall } from './core-calls.ts';
import { startServer, type TestServer } from './server.ts';

/** A node whose agent is a real server with a store `disks`. Requests to the agent go through its REST API. */
export interface AgentNode {
  readonly name: string;
  readonly server: TestServer;
  /** Answers a request like the agent. */
  readonly answer: (request: AgentRequest) => Promise<unknown>;
  /** Called before the agent answers. If the result is not undefined, it is the answer. */
  intercept: ((request: AgentRequest) => unknown) | undefined;
  connect(): void;
  volumes(): Promise<readonly Volume[]>;
}

/** Adds the node to the cluster and connects its agent. */
export async function anAgentNode(it: ControllerFixture, name: string, options = ''): Promise<AgentNode> {
  const server = await startServer({ listen: 'none', kinds: [createLocalStoreKind()] });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const place = join(server.folder, 'disks');
  mkdirSync(place);
  await server.core.stores.add('disks', `local://${place}${options}`, aCall());
  it.api.put(paths.nodes, { metadata: { name, uid: `uid-of-${name}`, labels: { [nodeTopologyKey]: name } } });
  const node: AgentNode = {
    name,
    server,
    intercept: undefined,
    answer: async (request) => (await node.intercept?.(request)) ?? (await callAgent(server, request)),
    connect: () => it.agents.connect(name, node.answer),
    volumes: async () => {
      const query = { stores: ['disks'], labels: {}, contains: undefined, after: undefined, limit: 1000 };
      return (await server.core.catalogue.page(query, aCall())).volumes;
    },
  };
  node.connect();
  return node;
}

async function callAgent({ admin }: TestServer, { method, path, body, requestId }: AgentRequest): Promise<unknown> {
  const headers = {
    ...(requestId === undefined ? {} : { 'idempotency-key': requestId }),
    // The agent's tunnel adds this header.
    ...(findAgentCall(method, path)?.answerForgotten === true ? { prefer: 'answer-forgotten' } : {}),
  };
  const answer = await admin.call(method, path, { headers, ...(body === undefined ? {} : { body }) });
  if (answer.status < 400) return answer.body ?? {};
  const { code, reason, detail, action } = answer.body as Record<string, string>;
  throw relayed(detail ?? '', {
    code: (code ?? 'internal') as ErrorCode,
    reason: reason ?? '',
    action: action ?? '',
  });
}
