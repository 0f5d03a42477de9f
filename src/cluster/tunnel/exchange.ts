import { type ClientHttp2Session, constants, type OutgoingHttpHeaders } from 'node:http2';
import { onAbort } from '#base/aborted.ts';

export interface ExchangeRequest {
  readonly headers: OutgoingHttpHeaders;
  readonly body: Buffer | undefined;
  readonly maxBytes: number;
}

export interface Answer {
  readonly status: number;
  readonly text: string;
}

/** The body of the answer is larger than the caller accepts. */
export class AnswerTooLong extends Error {
  override readonly name = 'AnswerTooLong';
}

/** The connection closed before the answer was complete. */
export class ConnectionLost extends Error {
  override readonly name = 'ConnectionLost';
}

/** Sends one request and reads its whole answer. When the signal aborts, it throws the reason at once, whatever the other side does. */
export async function exchange(
  session: ClientHttp2Session,
  request: ExchangeRequest,
  signal: AbortSignal,
): Promise<Answer> {
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const stream = openRequest(session, request);
  const chunks: Buffer[] = [];
  let status = 0;
  let length = 0;
  let isEnded = false;
  const fail = (error: unknown): void => {
    reject(error);
    stream.close(constants.NGHTTP2_CANCEL);
  };
  stream.on('error', (cause) => reject(new ConnectionLost('the request failed', { cause })));
  stream.on('response', (headers) => {
    status = headers[':status'] ?? 0;
  });
  stream.on('data', (chunk: Buffer) => {
    length += chunk.length;
    if (length > request.maxBytes) fail(new AnswerTooLong(`the answer is longer than ${request.maxBytes} bytes`));
    else chunks.push(chunk);
  });
  stream.once('end', () => {
    isEnded = true;
  });
  stream.once('close', () => {
    // Node also emits `end` for a truncated stream, so decide here whether the answer is complete.
    if (isEnded && status !== 0 && stream.rstCode === constants.NGHTTP2_NO_ERROR && !session.destroyed)
      resolve({ status, text: Buffer.concat(chunks).toString('utf8') });
    else reject(new ConnectionLost('the connection ended'));
  });
  using _ = onAbort(signal, () => fail(signal.reason));
  stream.end(request.body);
  return await promise;
}

function openRequest(session: ClientHttp2Session, { headers }: ExchangeRequest) {
  try {
    return session.request(headers, { endStream: false });
  } catch (cause) {
    throw new ConnectionLost('the connection is closed', { cause });
  }
}
