import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { Clock } from '#base/clock.ts';
import type { Credential } from '../leader/certificate.ts';
import { pathUnknown, refuse, refuseExpectation, refuseOnSocket, refuseUnparsable } from '../problems.ts';
import type { UpgradeHandler } from './agent-admission.ts';

/** The leader's HTTPS server. */
export interface TlsServer {
  /** Does not listen yet: the caller starts listening when there is a certificate. */
  readonly server: Server;
  /** Sets the certificate for new connections. Open connections stay. */
  setCredential(credential: Credential): void;
  /** Stops accepting, and waits for requests in flight. Closes connections that are open after `graceMs`. */
  close(graceMs: number): Promise<void>;
}

/** Handles requests that are no upgrades. It must answer for every path, and limit the body itself. */
export type RequestHandler = (request: IncomingMessage, response: ServerResponse) => void;

export interface TlsServerOptions {
  readonly clock: Clock;
  readonly onUpgrade: UpgradeHandler;
  /** Undefined: the server is only for agents. */
  readonly onRequest?: RequestHandler | undefined;
}

const limits = {
  handshakeTimeout: 10_000,
  headersTimeout: 10_000,
  requestTimeout: 30_000,
  keepAliveTimeout: 65_000,
  connectionsCheckingInterval: 5_000,
  maxHeaderSize: 16 * 1024,
  // Nothing here depends on the Host header, and Node's own error for a missing header is not a problem document.
  requireHostHeader: false,
};
/** One connection for each node, and a second one while a node reconnects. */
const maxConnections = 16_384;

export function createTlsServer({
  clock,
  onUpgrade,
  onRequest: handle = refuseUnknownPath,
}: TlsServerOptions): TlsServer {
  const server = createServer({ ...limits, minVersion: 'TLSv1.2' });
  server.maxConnections = maxConnections;
  server.on('request', handle);
  server.on('upgrade', onUpgrade);
  server.on('connect', (_request, socket) => {
    socket.on('error', () => undefined);
    refuseOnSocket(socket, pathUnknown());
  });
  server.on('clientError', refuseUnparsable).on('checkExpectation', refuseExpectation);
  return {
    server,
    setCredential: ({ cert, key }) => server.setSecureContext({ cert, key, minVersion: 'TLSv1.2' }),
    close: async (graceMs) => {
      if (!server.listening) return;
      const { promise, resolve } = Promise.withResolvers<void>();
      server.close(() => resolve());
      server.closeIdleConnections();
      using _ = clock.after(graceMs, () => server.closeAllConnections());
      await promise;
    },
  };
}

export function refuseUnknownPath(_request: IncomingMessage, response: ServerResponse): void {
  response.setHeader('connection', 'close');
  refuse(response, pathUnknown());
}
