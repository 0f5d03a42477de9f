import type { Scope } from '#base/log.ts';

/**
 * A request to the REST API of a node's agent: paths and bodies are those of the API, errors those of its problem documents. Only
 * what is in the table of cluster/tunnel/agent-calls.ts is ever done.
 */
export interface AgentRequest {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly body?: object;
  /** A change that is asked for twice with the same one happens once, and the agent gives the first answer again for a day. */
  readonly requestId?: string;
  /** Longer than usual, for what takes long. */
  readonly deadlineMs?: number;
}

/**
 * The agents that are connected to this controller, by the names of their nodes. A name comes from the agent's token, as Kubernetes
 * vouches for it, never from what the agent says.
 */
export interface Agents {
  nodes(): readonly string[];
  /** The parsed answer. Throws a StowageError: 'agent-absent' (unavailable) when that node's agent is not connected, or what the agent said. */
  call(node: string, request: AgentRequest, scope: Scope): Promise<unknown>;
  /** Called with a node's name when its agent has connected, or is lost. Gives what ends it. */
  follow(changed: (node: string) => void): () => void;
}
