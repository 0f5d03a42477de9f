import { findAgentCall } from '#cluster/tunnel/agent-calls.ts';
import type { AgentRequest, Agents } from '#controllers/agents.ts';
import { StowageError } from '#core/errors.ts';

/** Fake agents. The test connects them and defines their answers. */
export interface FakeAgents extends Agents {
  /** Every request so far: `node-1 GET /v1/status`. */
  readonly requests: string[];
  /** Connects the node, or replaces its answers. If an answer is an Error, the request throws it. */
  connect(node: string, answer: (request: AgentRequest) => unknown): void;
  disconnect(node: string): void;
}

export function createFakeAgents(): FakeAgents {
  const answers = new Map<string, (request: AgentRequest) => unknown>();
  const followers = new Set<(node: string) => void>();
  const asked: string[] = [];
  const tell = (node: string): void => {
    for (const follower of followers) follower(node);
  };
  return {
    requests: asked,
    nodes: () => [...answers.keys()],
    call: async (node, request) => {
      // Real agents answer these requests only.
      if (findAgentCall(request.method, request.path) === undefined) throw new TypeError(`not asked: ${request.path}`);
      asked.push(`${node} ${request.method} ${request.path}`);
      const given = answers.get(node)?.(request) ?? absent(node);
      if (given instanceof Error) throw given;
      return given;
    },
    follow: (changed) => {
      followers.add(changed);
      return () => followers.delete(changed);
    },
    connect: (node, answer) => {
      answers.set(node, answer);
      tell(node);
    },
    disconnect: (node) => {
      answers.delete(node);
      tell(node);
    },
  };
}

const absent = (node: string): StowageError =>
  new StowageError(`the agent of node '${node}' is not connected`, {
    code: 'unavailable',
    reason: 'agent-absent',
    action: 'Wait a moment.',
  });
