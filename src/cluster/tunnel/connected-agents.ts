import { type ClientHttp2Session, connect, type OutgoingHttpHeaders } from 'node:http2';
import type { Duplex } from 'node:stream';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { answerTypes } from '#base/problem.ts';
import type { AgentRequest, Agents } from '#controllers/agents.ts';
import { agentAbsent, callErrorFor, parseAnswer } from './agent-answers.ts';
import { findAgentCall } from './agent-calls.ts';
import { exchange } from './exchange.ts';
import { keepPinging } from './pings.ts';

/** The leader's end of the agents' connections. */
export interface ConnectedAgents extends Agents, Disposable {
  /**
   * Accepts an upgraded connection. If a node has several connections, the one requested last is used, even if another one is ready later.
   */
  accept(node: string, order: number, stream: Duplex): void;
}

export interface ConnectedAgentsOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly maxAnswerBytes?: number;
}

interface AgentConnection {
  readonly order: number;
  readonly session: ClientHttp2Session;
  end(): void;
}

const defaultTimeoutMs = 30_000;
/** Enough, since lists are paged. */
const defaultMaxAnswerBytes = 16 << 20;

export function createConnectedAgents({
  clock,
  log,
  maxAnswerBytes = defaultMaxAnswerBytes,
}: ConnectedAgentsOptions): ConnectedAgents {
  /** The connection in use of each node. */
  const current = new Map<string, AgentConnection>();
  const openConnections = new Set<AgentConnection>();
  const listeners = new Set<(node: string) => void>();

  function notify(node: string): void {
    for (const changed of listeners) {
      try {
        changed(node);
      } catch (error) {
        log.error('a handler of agent changes failed', { node, error });
      }
    }
  }

  function open(node: string, order: number, stream: Duplex): AgentConnection {
    // Server push is off, and headers are limited. The other limits are Node's defaults.
    const session = connect('http://agent', {
      createConnection: () => stream,
      maxHeaderListPairs: 64,
      settings: { enablePush: false, maxHeaderListSize: 16 * 1024 },
    });
    const pings = keepPinging(session, clock, () => log.warn('an agent stopped answering', { node }));
    const connection: AgentConnection = { order, session, end: () => session.destroy() };
    openConnections.add(connection);
    session.on('error', (error) => log.debug('the connection of an agent failed', { node, error }));
    // After GOAWAY the agent answers the requests in flight, and accepts no new ones on this connection.
    session.once('goaway', () => forget(node, connection));
    session.once('close', () => {
      openConnections.delete(connection);
      pings[Symbol.dispose]();
      stream.destroy();
      forget(node, connection);
    });
    return connection;
  }

  /** Uses this connection for the node from now on, unless a connection that was requested later is in use. */
  function makeCurrent(node: string, connection: AgentConnection): void {
    const previous = current.get(node);
    if (previous !== undefined && previous.order > connection.order) {
      connection.end();
      return;
    }
    current.set(node, connection);
    previous?.end();
    log.info('an agent is connected', { node });
    notify(node);
  }

  function forget(node: string, connection: AgentConnection): void {
    if (current.get(node) !== connection) return;
    current.delete(node);
    log.info('an agent is disconnected', { node });
    notify(node);
  }

  async function callAgent(node: string, request: AgentRequest, signal: AbortSignal): Promise<unknown> {
    const connection = current.get(node);
    if (connection === undefined) throw agentAbsent(node);
    const body = request.body === undefined ? undefined : Buffer.from(JSON.stringify(request.body));
    const headers = headersOf(request, body);
    const answer = await exchange(connection.session, { headers, body, maxBytes: maxAnswerBytes }, signal).catch(
      (thrown: unknown) => {
        throw callErrorFor(node, thrown);
      },
    );
    return parseAnswer(node, answer);
  }

  return {
    nodes: () => [...current.keys()].sort(),
    call: async (node, request, scope) => {
      const ms = request.deadlineMs ?? defaultTimeoutMs;
      using limit = clock.deadline(ms, scope.signal);
      return await callAgent(node, request, limit.signal);
    },
    follow: (changed) => {
      listeners.add(changed);
      return () => listeners.delete(changed);
    },
    accept: (node, order, stream) => {
      const connection = open(node, order, stream);
      // Wait for its SETTINGS, which limit concurrent streams. A client that does not speak HTTP/2 never sends them.
      connection.session.once('remoteSettings', () => makeCurrent(node, connection));
    },
    [Symbol.dispose]: () => {
      listeners.clear();
      current.clear();
      for (const connection of openConnections) connection.end();
    },
  };
}

function headersOf({ method, path, requestId }: AgentRequest, body: Buffer | undefined): OutgoingHttpHeaders {
  if (findAgentCall(method, path) === undefined) throw new TypeError(`agents do not accept ${method} ${path}`);
  return {
    ':method': method,
    ':path': path,
    accept: answerTypes,
    ...(body === undefined ? {} : { 'content-type': 'application/json', 'content-length': body.length }),
    ...(requestId === undefined ? {} : { 'idempotency-key': requestId }),
  };
}
