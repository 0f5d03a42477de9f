import type { HttpFailure } from '#base/http.ts';
import { parseJson } from '#base/json.ts';

/**
 * `refused`: the engine answered, and said no (`status`, and its own words). `unreachable`: the cause is the system's error.
 * `garbled`: also an answer that is not what the API says.
 */
export type DockerFailure = HttpFailure | 'refused';

export class DockerError extends Error {
  override readonly name = 'DockerError';
  readonly failure: DockerFailure;
  /** Of the answer; zero: there was none. */
  readonly status: number;
  /** What the engine said, where it said something. */
  readonly engineMessage: string;
  constructor(
    message: string,
    about: {
      readonly failure: DockerFailure;
      readonly status?: number;
      readonly engineMessage?: string;
      readonly cause?: unknown;
    },
  ) {
    super(message, { cause: about.cause });
    this.failure = about.failure;
    this.status = about.status ?? 0;
    this.engineMessage = about.engineMessage ?? '';
  }
}

export const garbled = (call: string, why: string, cause?: unknown): DockerError =>
  new DockerError(`${call}: ${why}`, { failure: 'garbled', cause });

export const parsed = (text: string, call: string): unknown => parseJson(text, (why) => garbled(call, why));
