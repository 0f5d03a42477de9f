import type { HttpFailure } from '#base/http.ts';
import { parseJson } from '#base/json.ts';

/**
 * `refused`: the engine returned an error (`status` and `engineMessage`). `unreachable`: the cause is a system error. `garbled`:
 * the reply is malformed or violates the API.
 */
export type DockerFailure = HttpFailure | 'refused';

export class DockerError extends Error {
  override readonly name = 'DockerError';
  readonly failure: DockerFailure;
  /** The HTTP status; 0 if there was no reply. */
  readonly status: number;
  /** The engine's error message, if any. */
  readonly engineMessage: string;
  constructor(
    message: string,
    options: {
      readonly failure: DockerFailure;
      readonly status?: number;
      readonly engineMessage?: string;
      readonly cause?: unknown;
    },
  ) {
    super(message, { cause: options.cause });
    this.failure = options.failure;
    this.status = options.status ?? 0;
    this.engineMessage = options.engineMessage ?? '';
  }
}

export const garbledError = (call: string, why: string, cause?: unknown): DockerError =>
  new DockerError(`${call}: ${why}`, { failure: 'garbled', cause });

export const parseBody = (text: string, call: string): unknown => parseJson(text, (why) => garbledError(call, why));
