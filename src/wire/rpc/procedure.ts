import type { XdrReader } from '../xdr/reader.ts';
import type { XdrWriter } from '../xdr/writer.ts';

/** One procedure of a program, with the encoding of its arguments and the decoding of its result. */
export interface Procedure<A, R> {
  readonly program: number;
  readonly version: number;
  readonly number: number;
  readonly name: string;
  /** The returned bytes are sent after the arguments without a copy; they must not change before the call has ended. */
  encode(writer: XdrWriter, args: A): Uint8Array | undefined;
  /** `resent`: the call was sent before on a connection that broke, so the server may have executed it twice. */
  decode(reader: XdrReader, args: A, resent: boolean): R;
  /**
   * Decodes a result up to its data, so that the data can be received straight into the caller's buffer. Undefined: the client
   * decodes the whole reply with `decode` once it has arrived.
   */
  decodeHead?(reader: XdrReader, args: A): { readonly target: Buffer; readonly result: R } | undefined;
  /**
   * The call changes something, so a second copy of it, or a first copy that runs late, can destroy later changes by other
   * clients. The client resends it only while the server recognises it. Left out: the call can be repeated at any time. See
   * docs/designs/nfs-resends.md.
   */
  readonly mutates?: ((args: A) => boolean) | undefined;
  /** Present if the reply shows whether the server has restarted. */
  readonly serverVerifier?: ServerVerifier | undefined;
}

export interface ServerVerifier {
  /** Changes when the server restarts. Some servers change it after failed writes, too. */
  verifierOf(result: unknown): bigint;
  /** The part of the arguments that `query` needs; kept instead of the arguments, which may be large. */
  queryTarget(args: unknown): unknown;
  /** A call that changes nothing, and whose reply has a verifier, too. */
  query(target: unknown): { readonly procedure: Procedure<unknown, unknown>; readonly args: unknown };
}
