import type { Socket } from 'node:net';
import { createServer, type TLSSocket, type TlsOptions } from 'node:tls';
import { rpcOverTls } from './tls.ts';

/** Makes a connection private, and gives it when the other side has shown what it had to. */
export type TlsUpgrade = (socket: Socket, then: (secured: TLSSocket) => void) => void;

/** Of the certificate that the other side showed. */
export function commonNameOf(secured: TLSSocket): string | undefined {
  const name = secured.authorized ? secured.getPeerCertificate().subject?.CN : undefined;
  // Several names in one certificate: then it is no name that anybody was given.
  return typeof name === 'string' ? name : undefined;
}

/**
 * A TLS server that listens nowhere: connections are handed to it. By hand, a client's certificate would be asked for and
 * not looked at. Who offers other protocols than RPC is refused; who offers none, as Linux's client does, is not.
 */
export function createTlsUpgrade(options: TlsOptions): TlsUpgrade {
  const expected = new Map<string, (secured: TLSSocket) => void>();
  const key = (socket: Socket): string => `${socket.remoteAddress} ${socket.remotePort}`;
  const server = createServer({ ...options, ALPNProtocols: [rpcOverTls] }, (secured) => {
    expected.get(key(secured))?.(secured);
  });
  server.on('tlsClientError', (_cause, secured) => secured.destroy());
  return (socket, then) => {
    if (socket.destroyed) return;
    expected.set(key(socket), then);
    socket.on('close', () => expected.delete(key(socket)));
    server.emit('connection', socket);
  };
}
