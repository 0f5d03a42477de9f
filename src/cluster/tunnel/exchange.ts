import { type ClientHttp2Session, constants, type OutgoingHttpHeaders } from 'node:http2';

export interface Outgoing {
  readonly headers: OutgoingHttpHeaders;
  readonly body: Buffer | undefined;
  readonly maxBytes: number;
}

export interface Answer {
  readonly status: number;
  readonly text: string;
}

/** The answer is longer than anything that is asked for. */
export class TooLong extends Error {
  override readonly name = 'TooLong';
}

/** The connection ended before the answer had come. */
export class Unanswered extends Error {
  override readonly name = 'Unanswered';
}

/** One request and its whole answer. Ends with the signal, at once, whatever the other side does; then throws its reason. */
export async function exchange(session: ClientHttp2Session, out: Outgoing, signal: AbortSignal): Promise<Answer> {
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const stream = begun(session, out);
  const chunks: Buffer[] = [];
  let status = 0;
  let length = 0;
  let isEnded = false;
  const fail = (error: unknown): void => {
    reject(error);
    stream.close(constants.NGHTTP2_CANCEL);
  };
  const stop = (): void => fail(signal.reason);
  stream.on('error', (cause) => reject(new Unanswered('the request failed', { cause })));
  stream.on('response', (headers) => {
    status = headers[':status'] ?? 0;
  });
  stream.on('data', (chunk: Buffer) => {
    length += chunk.length;
    if (length > out.maxBytes) fail(new TooLong(`the answer is longer than ${out.maxBytes} bytes`));
    else chunks.push(chunk);
  });
  stream.once('end', () => {
    isEnded = true;
  });
  stream.once('close', () => {
    // Node ends what was cut off as well; only here it is known which of both it was.
    if (isEnded && status !== 0 && stream.rstCode === constants.NGHTTP2_NO_ERROR && !session.destroyed)
      resolve({ status, text: Buffer.concat(chunks).toString('utf8') });
    else reject(new Unanswered('the connection ended'));
  });
  signal.addEventListener('abort', stop, { once: true });
  try {
    stream.end(out.body);
    return await promise;
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

function begun(session: ClientHttp2Session, { headers }: Outgoing) {
  try {
    return session.request(headers, { endStream: false });
  } catch (cause) {
    throw new Unanswered('the connection is closed', { cause });
  }
}
