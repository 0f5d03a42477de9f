import type { Row } from './report.ts';

export interface BenchOptions {
  /** Undefined: as many as usual. */
  readonly rounds: number | undefined;
  /** Only rows whose name has this in it. */
  readonly only: string;
  /** An earlier commit to measure beside this one, instead of other software. */
  readonly against?: string | undefined;
}

export interface Bench {
  readonly about: string;
  /** Those that it heeds. */
  readonly options?: readonly (keyof BenchOptions)[];
  /** `note` is for progress; the rows are the answer. */
  run(signal: AbortSignal, note: (text: string) => void, options: BenchOptions): Promise<readonly Row[]>;
}
