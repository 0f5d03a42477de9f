import type { Row } from './report.ts';

export interface BenchOptions {
  /** Undefined: the benchmark's own default. */
  readonly rounds: number | undefined;
  /** Measures only rows whose name contains this text. */
  readonly only: string;
  /** Compares with this earlier commit instead of with other software. */
  readonly against?: string | undefined;
}

export interface Bench {
  readonly about: string;
  /** The options that the benchmark supports. */
  readonly options?: readonly (keyof BenchOptions)[];
  /** Measures and returns the rows. `note` reports progress. */
  run(signal: AbortSignal, note: (text: string) => void, options: BenchOptions): Promise<readonly Row[]>;
}
