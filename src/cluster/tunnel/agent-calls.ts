import type { AgentRequest } from '#controllers/agents.ts';
import { podAddressPattern } from '#core/check-places.ts';

/** A method and a path of the REST API, as its routes are written. */
interface AgentCall {
  readonly method: AgentRequest['method'];
  readonly path: string;
  /**
   * If set, agents ignore a body that does not match, since it would request more than a controller may have. If not set, only the REST API
   * checks the body.
   */
  readonly body?: RegExp;
  /** The created object records the request id itself, so the agent does not have to store the answer as well. */
  readonly answerForgotten?: boolean;
}

/**
 * All calls that agents accept from a controller, for itself and for users whose requests it forwards. An agent can do anything on its
 * node, but a compromised controller must be limited to these calls: it cannot create stores, mounts or tokens. Both sides refuse other
 * calls.
 */
export const agentCalls: readonly AgentCall[] = [
  { method: 'GET', path: '/v1/status' },
  { method: 'GET', path: '/v1/doctor' },
  { method: 'GET', path: '/v1/client' },
  { method: 'GET', path: '/v1/mounts' },
  { method: 'GET', path: '/v1/troubles' },
  { method: 'GET', path: '/v1/stores' },
  { method: 'GET', path: '/v1/stores/{store}' },
  // A controller can have the store checked from the network of a pod. Only an administrator on the node can name other networks.
  { method: 'POST', path: '/v1/stores/{store}/check', body: new RegExp(`^\\{"from":"${podAddressPattern}"\\}$`) },
  { method: 'GET', path: '/v1/volumes' },
  { method: 'POST', path: '/v1/volumes', answerForgotten: true },
  { method: 'GET', path: '/v1/volumes/{volume}' },
  { method: 'PATCH', path: '/v1/volumes/{volume}' },
  { method: 'DELETE', path: '/v1/volumes/{volume}' },
  { method: 'DELETE', path: '/v1/volumes/{volume}/empty' },
  { method: 'GET', path: '/v1/volumes/{volume}/usage' },
  { method: 'POST', path: '/v1/volumes/{volume}/expand' },
  { method: 'POST', path: '/v1/volumes/{volume}/rename' },
];

const patterns = agentCalls.map((call) => {
  // Refuse `.` and `..`, also percent-encoded: the path that is checked here must be the path that is requested.
  const path = call.path.replaceAll(/\{\w+\}/g, "(?!(?:\\.|%2[Ee]){1,2}(?![^/?]))[\\w.~%!'()*-]+");
  // Only GET may have a query.
  return { call, pattern: new RegExp(`^${path}${call.method === 'GET' ? '(?:\\?.*)?' : ''}$`) };
});

/** Undefined if agents do not accept this call from a controller. */
export const findAgentCall = (method: string, path: string): AgentCall | undefined =>
  patterns.find(({ call, pattern }) => call.method === method && pattern.test(path))?.call;
