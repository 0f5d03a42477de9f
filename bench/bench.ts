import type { Row } from './report.ts';

export interface BenchOptions {
  /** Undefined: the default of the benchmark. */
  readonly rounds: number | undefined;
  /** Only rows whose name contains this text. */
  readonly only: string;
  /** An earlier commit to compare with, instead of other software. */
  readonly against?: string | undefined;
}

export interface Bench {
  readonly about: string;
  /** The options that the benchmark supports. */
  readonly options?: readonly (keyof BenchOptions)[];
  /** `note` reports progress; the result is the rows. */
  run(signal: AbortSignal, note: (text: string) => void, options: BenchOptions): Promise<readonly Row[]>;
}
