/** The data of one WRITE, in memory that outlives this process. */
export interface Piece<W> {
  /** Its place in the journal. */
  readonly place: number;
  readonly offset: number;
  readonly data: Uint8Array;
  /** The writer's identity. */
  readonly writer: W;
}

export interface SendResult {
  /** The server has it on its disk. */
  readonly isStable: boolean;
  readonly verifier: bigint;
}

export interface Range {
  readonly offset: number;
  readonly length: number;
}

export const rangeOf = ({ offset, data }: Piece<unknown>): Range => ({ offset, length: data.length });

export const isOverlap = ({ offset, data }: Piece<unknown>, range: Range): boolean =>
  offset < range.offset + range.length && range.offset < offset + data.length;
