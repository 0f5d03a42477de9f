import { STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';

/** The statuses for errors of Node's HTTP parser; all others are a 400. */
const statuses: Readonly<Record<string, number>> = {
  HPE_HEADER_OVERFLOW: 431,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  ERR_HTTP_REQUEST_TIMEOUT: 408,
};

export interface RawResponse {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** Node's parser rejects such input before there is a request. So the handler writes the response directly to the socket and closes it. */
export const createClientErrorHandler =
  (answer: (status: number) => RawResponse) =>
  (error: Error & { readonly code?: string }, socket: Duplex): void => {
    if (error.code === 'ECONNRESET' || !socket.writable) {
      socket.destroy();
      return;
    }
    endWithResponse(socket, answer(statuses[error.code ?? ''] ?? 400));
  };

/** Writes a response directly to the socket, then closes the connection. */
export function endWithResponse(socket: Duplex, { status, headers, body }: RawResponse): void {
  const allHeaders = { ...headers, 'content-length': Buffer.byteLength(body), connection: 'close' };
  const head = Object.entries(allHeaders).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${head.join('')}\r\n${body}`);
}
