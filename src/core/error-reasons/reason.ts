import type { ErrorCode } from '../error-codes.ts';

/**
 * Who may read the full message and action of an error. `everybody`: the text contains only names and paths from the caller, sizes,
 * and states; it does not reveal how a store is reached, where it is, or what else is on the machine.
 * `local`: only the command line shows the error, or a server before it listens. If it is sent, it is for administrators.
 */
export type Readers = 'everybody' | 'administrators' | 'local';

/** The error has the code of the error that caused it. */
export const codeOfCause = 'that of the cause';

/** Several codes: the throw site chooses one. */
export type ReasonCode = ErrorCode | readonly ErrorCode[] | typeof codeOfCause;

/** A row of the table of reasons. */
export interface ErrorReason<C extends ReasonCode = ReasonCode> {
  readonly code: C;
  readonly readers: Readers;
  /** When the error occurs: one sentence for docs/reference/errors.md. */
  readonly when: string;
  /** For callers who are not administrators. Set if the short text of the code would blame the wrong component. */
  readonly short?: string | undefined;
  /**
   * The store denies Stowage access, even if the code is `unavailable` because Stowage retries. `mostLikely`: the server's behavior, if
   * it can also have another cause.
   */
  readonly denial?: { readonly mostLikely: string | undefined };
  /** The cause may be that the server closes every connection from this host at once, which is a denial. Only a ping can tell. */
  readonly mayBeDenial?: true;
  /** For a configured store, what is missing may come back. For a store that is being added, it is a mistake in the request. */
  readonly mistakeWhenAdded?: true;
}

export const everybody = <const C extends ReasonCode>(code: C, when: string): ErrorReason<C> => ({
  code,
  readers: 'everybody',
  when,
});

export const administrators = <const C extends ReasonCode>(code: C, when: string, short?: string): ErrorReason<C> => ({
  code,
  readers: 'administrators',
  when,
  short,
});

export const local = <const C extends ReasonCode>(code: C, when: string): ErrorReason<C> => ({
  code,
  readers: 'local',
  when,
});

export const accessDenied = <const C extends ReasonCode>(
  code: C,
  when: string,
  mostLikely?: string,
): ErrorReason<C> => ({
  code,
  readers: 'administrators',
  when,
  denial: { mostLikely },
});

export const mayBeDenial = <const C extends ReasonCode>(row: ErrorReason<C>): ErrorReason<C> => ({
  ...row,
  mayBeDenial: true,
});

export const mistakeWhenAdded = <const C extends ReasonCode>(row: ErrorReason<C>): ErrorReason<C> => ({
  ...row,
  mistakeWhenAdded: true,
});
