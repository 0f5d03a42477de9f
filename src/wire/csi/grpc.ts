import type { DescMessage, DescMethod, DescService, MessageInitShape, MessageShape } from '@bufbuild/protobuf';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';

/** The gRPC status codes that are used. */
export const grpcCodes = {
  ok: 0,
  canceled: 1,
  unknown: 2,
  invalidArgument: 3,
  deadlineExceeded: 4,
  resourceExhausted: 8,
  unimplemented: 12,
  internal: 13,
  unavailable: 14,
} as const;

export interface GrpcStatus {
  readonly code: number;
  readonly message: string;
}

/** The server sends this error to the caller unchanged. `statusOf` translates all other errors of handlers. */
export class GrpcError extends Error {
  override readonly name = 'GrpcError';
  readonly code: number;
  constructor(message: string, options: { readonly code: number; readonly cause?: unknown }) {
    super(message, { cause: options.cause });
    this.code = options.code;
  }
}

export interface GrpcCall {
  /** Aborted at the caller's deadline, when the caller cancels, and when the server closes. */
  readonly signal: AbortSignal;
  /** For example `/csi.v1.Node/NodePublishVolume`. */
  readonly method: string;
}

type Handler<M extends DescMethod> = (
  request: MessageShape<M['input']>,
  call: GrpcCall,
) => Promise<MessageInitShape<M['output']>>;

export type Handlers<S extends DescService> = { readonly [K in keyof S['method']]?: Handler<S['method'][K]> };

/** Handlers of encoded messages by method. */
export type Methods = ReadonlyMap<string, (message: Uint8Array, call: GrpcCall) => Promise<Uint8Array>>;

/** Methods without a handler are unimplemented. */
export function createMethods<S extends DescService>(service: S, handlers: Handlers<S>): Methods {
  return new Map(
    service.methods.flatMap((method) => {
      const handler = (handlers as Readonly<Record<string, Handler<DescMethod> | undefined>>)[method.localName];
      if (handler === undefined) return [];
      const { input, output } = method;
      const answer = async (message: Uint8Array, call: GrpcCall): Promise<Uint8Array> =>
        toBinary(output, create(output, await handler(parseMessage(input, message), call)));
      return [[`/${service.typeName}/${method.name}`, answer]];
    }),
  );
}

function parseMessage<M extends DescMessage>(input: M, message: Uint8Array): MessageShape<M> {
  try {
    return fromBinary(input, message);
  } catch (cause) {
    throw new GrpcError(`the message is not a ${input.name}`, { code: grpcCodes.invalidArgument, cause });
  }
}

/** A gRPC frame: the compression flag, the length, the message. */
export function encodeFrame(message: Uint8Array): Buffer {
  const frame = Buffer.alloc(5 + message.length);
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, 5);
  return frame;
}

export function decodeFrame(frame: Buffer): Buffer {
  if (frame.length < 5) throw new GrpcError('the request has no message', { code: grpcCodes.internal });
  if (frame[0] !== 0) throw new GrpcError('compressed messages are not supported', { code: grpcCodes.unimplemented });
  if (frame.readUInt32BE(1) !== frame.length - 5)
    throw new GrpcError('the request is not exactly one message', { code: grpcCodes.internal });
  return frame.subarray(5);
}

const unitMs: Readonly<Record<string, number>> = { H: 3_600_000, M: 60_000, S: 1_000, m: 1, u: 0.001, n: 0.000_001 };

/** Parses `grpc-timeout` into ms. Undefined: no deadline. */
export function parseTimeout(header: string | undefined): number | undefined {
  if (header === undefined) return undefined;
  const [, value, unit] = /^([0-9]{1,8})([HMSmun])$/.exec(header) ?? [];
  if (value === undefined || unit === undefined)
    throw new GrpcError('the header grpc-timeout is malformed', { code: grpcCodes.internal });
  return Math.ceil(Number(value) * (unitMs[unit] ?? 0));
}

/** Percent-encodes everything in `grpc-message` that is not printable ASCII. */
export function encodeStatusMessage(text: string): string {
  return Array.from(Buffer.from(text), (byte) =>
    byte >= 0x20 && byte <= 0x7e && byte !== 0x25
      ? String.fromCharCode(byte)
      : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`,
  ).join('');
}
