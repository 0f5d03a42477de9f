import type { Scope } from '#base/log.ts';
import type { OperationId } from './model.ts';

export interface Progress {
  readonly done: number;
  readonly total: number | undefined;
  readonly unit: string;
}

/** The scope of an operation's work, its id, and the callback that reports progress. */
export interface Work extends Scope {
  readonly operation: OperationId;
  progress(progress: Progress): void;
}

/** The result of an operation's work. */
export interface Outcome<T> {
  readonly value: T;
  /** Writes the result, in the transaction that ends the operation. Retried if the transaction fails. */
  readonly record?: () => void;
  /** Publishes events, after the transaction. */
  readonly announce?: () => void;
}
