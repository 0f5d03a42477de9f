import type { Scope } from '#base/log.ts';

/**
 * A request to the REST API of a node's agent, with the paths, bodies and problem documents of that API. Agents accept only the calls in
 * the table of cluster/tunnel/agent-calls.ts.
 */
export interface AgentRequest {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly body?: object;
  /** The idempotency key: a repeated change with the same one happens once. For a day, the agent returns its first answer again. */
  readonly requestId?: string;
  /** Replaces the default deadline, for slow requests. */
  readonly deadlineMs?: number;
}

/**
 * The agents that are connected to this controller, by node name. The name comes from the agent's token, which Kubernetes reviewed, never
 * from the agent itself.
 */
export interface Agents {
  nodes(): readonly string[];
  /** Returns the parsed answer. Throws 'agent-absent' (unavailable) if the node's agent is not connected, or the error in its answer. */
  call(node: string, request: AgentRequest, scope: Scope): Promise<unknown>;
  /** Calls back with the node name when an agent connects or disconnects. Returns a function that stops it. */
  follow(changed: (node: string) => void): () => void;
}
