import { STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';

/** How an error of Node's HTTP parser is answered; anything else of it is a 400. */
const statuses: Readonly<Record<string, number>> = {
  HPE_HEADER_OVERFLOW: 431,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  ERR_HTTP_REQUEST_TIMEOUT: 408,
};

export interface BareAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** What Node's parser refuses never becomes a request: it is answered on the bare connection, which ends with it. */
export const refusingUnparsable =
  (answer: (status: number) => BareAnswer) =>
  (error: Error & { readonly code?: string }, socket: Duplex): void => {
    if (error.code === 'ECONNRESET' || !socket.writable) {
      socket.destroy();
      return;
    }
    answerBare(socket, answer(statuses[error.code ?? ''] ?? 400));
  };

/** On a connection on which nothing else can be answered any more. */
export function answerBare(socket: Duplex, { status, headers, body }: BareAnswer): void {
  const all = { ...headers, 'content-length': Buffer.byteLength(body), connection: 'close' };
  const head = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${head.join('')}\r\n${body}`);
}
