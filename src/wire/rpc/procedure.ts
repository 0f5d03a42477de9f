import type { XdrReader } from '../xdr/reader.ts';
import type { XdrWriter } from '../xdr/writer.ts';

/** One procedure of a program: how its arguments are laid out and its result is read. */
export interface Procedure<A, R> {
  readonly program: number;
  readonly version: number;
  readonly number: number;
  readonly name: string;
  /** What it gives is sent behind the arguments, uncopied; it must not change before the call has ended. */
  encode(writer: XdrWriter, args: A): Uint8Array | undefined;
  /** `resent`: the call was sent before on a connection that broke, so the server may have done it twice. */
  decode(reader: XdrReader, args: A, resent: boolean): R;
  /**
   * Reads a result up to its data, for data that shall go directly where the caller wants them. Undefined: decode it as
   * usual, when all of it is there.
   */
  decodeHead?(reader: XdrReader, args: A): { readonly target: Buffer; readonly result: R } | undefined;
  /**
   * The call changes something, so a second copy of it, or a first copy that runs late, can destroy what others did since. It is
   * resent only while the server recognises it. Left out: the call can be repeated at any time. See docs/designs/nfs-resends.md.
   */
  readonly mutates?: ((args: A) => boolean) | undefined;
  /** Present where the reply tells one run of the server from the next. */
  readonly serverVerifier?: ServerVerifier | undefined;
}

export interface ServerVerifier {
  /** Changes when the server restarts. Some servers change it after failed writes, too. */
  of(result: unknown): bigint;
  /** What `ask` needs; kept instead of the arguments, which may be large. */
  queryTarget(args: unknown): unknown;
  /** A call that changes nothing, and whose reply has an incarnation too. */
  query(witness: unknown): { readonly procedure: Procedure<unknown, unknown>; readonly args: unknown };
}
