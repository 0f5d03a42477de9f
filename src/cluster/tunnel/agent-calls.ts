import type { AgentRequest } from '#controllers/agents.ts';
import { podAddressPattern } from '#core/check-places.ts';

/** A method and a path of the REST API, as its routes are written. */
interface AgentCall {
  readonly method: AgentRequest['method'];
  readonly path: string;
  /** The only body that agents read. They ignore any other: it would ask for more than a controller may have. Unless given, the REST API checks the body. */
  readonly body?: RegExp;
  /** What it makes has the request's id itself: an agent that kept the answer too would write twice as much for each. */
  readonly answerForgotten?: boolean;
}

/**
 * All that agents do for a controller, for itself and for those users whose requests it passes on. An agent may do anything on its node,
 * and whoever has the controller is to have no more than this: neither stores nor mounts nor tokens are made this way. What is not here,
 * neither side sends or takes.
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
  // No name that leads elsewhere, however it is written: what is checked here is what is asked.
  const path = call.path.replaceAll(/\{\w+\}/g, "(?!(?:\\.|%2[Ee]){1,2}(?![^/?]))[\\w.~%!'()*-]+");
  // Only what is read can be asked for in one way or another.
  return { call, pattern: new RegExp(`^${path}${call.method === 'GET' ? '(?:\\?.*)?' : ''}$`) };
});

/** Undefined: no agent does this for a controller. */
export const agentCall = (method: string, path: string): AgentCall | undefined =>
  patterns.find(({ call, pattern }) => call.method === method && pattern.test(path))?.call;
