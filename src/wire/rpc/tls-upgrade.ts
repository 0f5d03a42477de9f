import type { Socket } from 'node:net';
import { createServer, type TLSSocket, type TlsOptions } from 'node:tls';
import { rpcAlpnName } from './tls.ts';

/** Starts TLS on a connection, and calls `onSecured` once the handshake has succeeded. */
export type TlsUpgrade = (socket: Socket, onSecured: (secured: TLSSocket) => void) => void;

/** The common name of the peer's certificate. */
export function commonNameOf(secured: TLSSocket): string | undefined {
  const name = secured.authorized ? secured.getPeerCertificate().subject?.CN : undefined;
  // A certificate with several common names does not identify a client.
  return typeof name === 'string' ? name : undefined;
}

/**
 * A TLS server that does not listen: connections are handed to it. A TLSSocket on its own would request a client's certificate
 * but not verify it. The server rejects clients that offer only other protocols by ALPN. It accepts clients that do not use ALPN, such as
 * Linux's.
 */
export function createTlsUpgrade(options: TlsOptions): TlsUpgrade {
  const onSecuredByPeer = new Map<string, (secured: TLSSocket) => void>();
  const key = (socket: Socket): string => `${socket.remoteAddress} ${socket.remotePort}`;
  const server = createServer({ ...options, ALPNProtocols: [rpcAlpnName] }, (secured) => {
    onSecuredByPeer.get(key(secured))?.(secured);
  });
  server.on('tlsClientError', (_cause, secured) => secured.destroy());
  return (socket, then) => {
    if (socket.destroyed) return;
    onSecuredByPeer.set(key(socket), then);
    socket.on('close', () => onSecuredByPeer.delete(key(socket)));
    server.emit('connection', socket);
  };
}
