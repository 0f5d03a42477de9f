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
  head?(reader: XdrReader, args: A): { readonly target: Buffer; readonly result: R } | undefined;
}
