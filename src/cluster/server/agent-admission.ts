import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { streamOver } from '#base/socket-stream.ts';
import { StowageError } from '#core/errors.ts';
import { bearerOf, nodeOfAgent, type TokenReviews } from '../auth/token-reviews.ts';
import { agentUpgrade } from '../names.ts';
import { pathUnknown, refuseOnSocket } from '../problems.ts';
import type { ConnectedAgents } from '../tunnel/connected-agents.ts';

export interface AgentAdmissionOptions {
  readonly reviews: TokenReviews;
  readonly agents: Pick<ConnectedAgents, 'accept'>;
  readonly namespace: string;
  readonly clock: Clock;
  readonly log: Log;
  /** Aborts pending admissions. */
  readonly signal: AbortSignal;
}

/** Handles HTTP upgrade requests. */
export type UpgradeHandler = (request: IncomingMessage, socket: Duplex, head: Buffer) => void;

const admissionTimeoutMs = 15_000;
const switchingProtocols = `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${agentUpgrade.protocol}\r\n\r\n`;

/** Admits agents, each for the node that its token names. */
export function createAgentAdmission(options: AgentAdmissionOptions): UpgradeHandler {
  const { reviews, agents, namespace, clock } = options;
  let requestCount = 0;

  async function admit(request: IncomingMessage, signal: AbortSignal): Promise<string> {
    const { method, url = '', headers } = request;
    if (url !== agentUpgrade.path || method !== 'GET') throw pathUnknown();
    if (headers.upgrade?.toLowerCase() !== agentUpgrade.protocol) throw protocolUnsupported();
    const scope = { signal, log: options.log };
    const clientAddress = request.socket.remoteAddress ?? '';
    return nodeOfAgent(await reviews.review(bearerOf(headers.authorization), scope, clientAddress), namespace);
  }

  async function admitUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const order = requestCount++;
    const hangUpAbort = new AbortController();
    const onClose = (): void => hangUpAbort.abort(new Error('the agent hung up'));
    socket.on('error', () => undefined).once('close', onClose);
    using limit = clock.deadline(admissionTimeoutMs, AbortSignal.any([options.signal, hangUpAbort.signal]));
    try {
      const node = await admit(request, limit.signal);
      limit.signal.throwIfAborted();
      socket.off('close', onClose);
      socket.write(switchingProtocols);
      agents.accept(node, order, streamOver(socket, { head }));
    } catch (thrown) {
      const { remoteAddress } = request.socket;
      if (!hangUpAbort.signal.aborted) options.log.warn('rejected an agent', { from: remoteAddress, error: thrown });
      if (socket.writable) refuseOnSocket(socket, thrown);
      // Free the socket of a client that does not read the answer, or does not hang up.
      clock.after(admissionTimeoutMs, () => socket.destroy());
    }
  }

  return (request, socket, head) => void admitUpgrade(request, socket, head);
}

const protocolUnsupported = (): StowageError =>
  new StowageError(`only agents with the protocol ${agentUpgrade.protocol} can connect`, {
    code: 'unsupported',
    reason: 'agent-protocol-other',
    action: 'Run versions of the agents and the controller that are at most one apart.',
  });
