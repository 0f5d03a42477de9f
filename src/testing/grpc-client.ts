import { type ClientHttp2Session, connect } from 'node:http2';
import { connect as connectSocket } from 'node:net';
import {
  create,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf';
import { decodeFrame, encodeFrame } from '#wire/csi/grpc.ts';

/** The error of a failed call. */
class CallError extends Error {
  override readonly name = 'Refused';
  readonly code: number;
  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

export interface GrpcClient extends AsyncDisposable {
  readonly session: ClientHttp2Session;
  call<M extends DescMethodUnary>(
    method: M,
    request: MessageInitShape<M['input']>,
    headers?: Readonly<Record<string, string>>,
  ): Promise<MessageShape<M['output']>>;
  /** Sends the bytes as the body of a call. */
  callBytes(path: string, body: Buffer, headers?: Readonly<Record<string, string>>): Promise<Buffer>;
}

/** A minimal gRPC client for tests: unary calls only. */
export function grpcClient(socket: string): GrpcClient {
  const session = connect('http://localhost', { createConnection: () => connectSocket(socket) });
  session.on('error', () => undefined);

  const callBytes: GrpcClient['callBytes'] = (path, body, headers = {}) => {
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
    const stream = session.request({
      ':method': 'POST',
      ':path': path,
      'content-type': 'application/grpc',
      te: 'trailers',
      ...headers,
    });
    const chunks: Buffer[] = [];
    const settle = (said: Readonly<Record<string, unknown>>): void => {
      const code = said['grpc-status'];
      if (code === '0') resolve(Buffer.concat(chunks));
      else if (code !== undefined)
        reject(new CallError(Number(code), decodeURIComponent(String(said['grpc-message'] ?? ''))));
    };
    stream.on('response', (said) => {
      if (said[':status'] !== 200) reject(new Error(`HTTP ${said[':status']}`));
      settle(said);
    });
    stream.on('data', (chunk: Buffer) => chunks.push(chunk));
    stream.on('trailers', settle);
    stream.on('error', reject);
    stream.on('close', () => reject(new Error('closed without a status')));
    stream.end(body);
    return promise;
  };

  return {
    session,
    callBytes,
    call: async <M extends DescMethodUnary>(
      method: M,
      request: MessageInitShape<M['input']>,
      headers?: Readonly<Record<string, string>>,
    ) => {
      const path = `/${method.parent.typeName}/${method.name}`;
      const body = encodeFrame(toBinary<M['input']>(method.input, create<M['input']>(method.input, request)));
      return fromBinary<M['output']>(method.output, decodeFrame(await callBytes(path, body, headers)));
    },
    [Symbol.asyncDispose]: async () => {
      const { promise, resolve } = Promise.withResolvers<void>();
      if (session.destroyed) return;
      session.close(() => resolve());
      await promise;
    },
  };
}
