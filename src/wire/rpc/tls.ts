import type { Socket } from 'node:net';
import type { ConnectionOptions, TLSSocket } from 'node:tls';
import { onAbort } from '#base/aborted.ts';
import { RpcError } from './errors.ts';
import { callType, rpcVersion, tlsProbeCredential } from './message.ts';
import { createReceiver } from './receiver.ts';
import { createSender } from './sender.ts';

/** Settings for RFC 9289. The TLS probe is a NULL call to this program. */
export interface TlsClientOptions {
  readonly options: ConnectionOptions;
  readonly program: number;
  readonly version: number;
}

/** RFC 9289, section 8.2: the name of RPC in ALPN. */
export const rpcAlpnName = 'sunrpc';

/**
 * The RFC also requires the client to reject a server that sends no ALPN. But Linux's server does not send it (tlshd of
 * ktls-utils names protocols only for QUIC), and this server has already shown that it speaks RPC by its answer to the TLS probe.
 */
export const negotiatedOtherProtocol = ({ alpnProtocol }: TLSSocket): boolean =>
  ![rpcAlpnName, false, null].includes(alpnProtocol);

const probeXid = 0x5354_4f57;
const startTls = Buffer.from('STARTTLS');

/** RFC 9289, section 4.1: a NULL call with AUTH_TLS. A server that supports TLS answers with the verifier STARTTLS. */
export async function probeTls(socket: Socket, tls: TlsClientOptions, signal: AbortSignal): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const rejectAsNoTls = (cause?: unknown): void =>
    reject(new RpcError('the server does not offer TLS', { failure: 'tls', cause }));
  // This is not a rejection: a server that is starting, or a proxy in front of it, closes connections without an answer.
  const rejectAsUnreachable = (cause?: unknown): void =>
    reject(new RpcError('the connection ended during the TLS probe', { failure: 'unreachable', cause }));
  const onClose = (): void => rejectAsUnreachable();
  const receiver = createReceiver({
    maxRecord: 1024,
    onRecord: (buffer, view, from, end) => {
      // xid, reply, accepted, verifier flavor, verifier.
      const isOurs = end - from >= 28 && view.getUint32(from) === probeXid && view.getUint32(from + 4) === 1;
      if (!isOurs || view.getUint32(from + 8) !== 0 || view.getUint32(from + 16) !== startTls.length)
        return rejectAsNoTls();
      if (buffer.subarray(from + 20, from + 28).equals(startTls)) resolve();
      else rejectAsNoTls();
    },
  });
  const onData = (chunk: Buffer): void => {
    try {
      receiver.push(chunk);
    } catch (cause) {
      rejectAsNoTls(cause);
    }
  };
  socket.on('data', onData).once('error', rejectAsUnreachable).once('close', onClose);
  using _ = onAbort(signal, () =>
    reject(new RpcError('no answer to the TLS probe', { failure: 'canceled', cause: signal.reason })),
  );
  const sender = createSender(socket, { onError: rejectAsUnreachable, isPlainTcp: false });
  sender.addRecord((writer, { program, version }) => {
    writer
      .u32(probeXid)
      .u32(callType)
      .u32(rpcVersion)
      .u32(program)
      .u32(version)
      .u32(0)
      .fixedOpaque(tlsProbeCredential());
    return undefined;
  }, tls);
  sender.flush();
  try {
    await promise;
  } finally {
    socket.off('data', onData).off('error', rejectAsUnreachable).off('close', onClose);
  }
}
