/**
 * - `unreachable`: no connection could be made; nothing was done (cause: the system's error)
 * - `lost`: the connection broke before the answer was complete; whether the call was done is not known
 * - `deadline`: no answer in time; whether the call was done is not known
 * - `canceled`: the caller gave up
 * - `refused`: the engine answered, and said no (`status`, and its own words)
 * - `garbled`: what came back is not what the API says, or more of it than is taken
 */
export type DockerFailure = 'unreachable' | 'lost' | 'deadline' | 'canceled' | 'refused' | 'garbled';

export class DockerError extends Error {
  override readonly name = 'DockerError';
  readonly failure: DockerFailure;
  /** Of the answer; zero: there was none. */
  readonly status: number;
  /** What the engine said, where it said something. */
  readonly said: string;
  constructor(
    message: string,
    about: {
      readonly failure: DockerFailure;
      readonly status?: number;
      readonly said?: string;
      readonly cause?: unknown;
    },
  ) {
    super(message, { cause: about.cause });
    this.failure = about.failure;
    this.status = about.status ?? 0;
    this.said = about.said ?? '';
  }
}

export const garbled = (call: string, why: string, cause?: unknown): DockerError =>
  new DockerError(`${call}: ${why}`, { failure: 'garbled', cause });
