import type { Machine } from './machine.ts';

/** A container engine of the test's own: nothing of it is seen by, or sees, one that the machine may have. */
export interface TestEngine extends Pick<Machine, 'inside' | 'beside'>, AsyncDisposable {
  readonly kind: 'docker' | 'podman';
  /** Where it serves the Docker API. */
  readonly socket: string;
  /** Sockets put here are volume plugins. */
  readonly plugins: string;
  /** Runs the client, `docker` or `podman`; gives what it printed, without the last newline. */
  run(...args: readonly string[]): Promise<string>;
  /** As at a shutdown. Containers of Docker end first; those of Podman have nothing to do with its service. */
  stop(): Promise<void>;
  /** `kill -9`: containers go on, until a Docker engine without `--live-restore` is started again. */
  kill(): Promise<void>;
  /** Again, on what it left. */
  start(): Promise<void>;
}

export interface TestEngineOptions {
  /** With bridge networks, their addresses and their rules; otherwise containers have `none` and `host`. */
  readonly bridges?: boolean;
  /** Folders in which the test mounts something for containers. */
  readonly shared?: readonly string[];
}
