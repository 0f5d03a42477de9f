import type { Machine } from './machine.ts';

/** A separate container engine for a test, isolated from other engines of the machine. */
export interface TestEngine extends Pick<Machine, 'inside' | 'beside'>, AsyncDisposable {
  readonly kind: 'docker' | 'podman';
  /** The socket of its Docker API. */
  readonly socket: string;
  /** The folder for sockets of volume plugins. */
  readonly plugins: string;
  /** Runs the client, `docker` or `podman`. Returns its output without the last newline. */
  run(...args: readonly string[]): Promise<string>;
  /**
   * Stops the engine as at a shutdown. Docker ends its containers first; Podman's containers do not depend on its
   * service.
   */
  stop(): Promise<void>;
  /** Sends SIGKILL. Containers keep running until a Docker engine without `--live-restore` starts again. */
  kill(): Promise<void>;
  /** Starts the engine on the same state. */
  start(): Promise<void>;
}

export interface TestEngineOptions {
  /**
   * Whether the engine has bridge networks, with addresses and firewall rules. Otherwise containers have only `none`
   * and `host`.
   */
  readonly bridges?: boolean;
  /** Folders in which the test makes mounts for containers. */
  readonly shared?: readonly string[];
}
