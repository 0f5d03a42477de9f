import { spawn } from 'node:child_process';

/** What is run: the same, whoever starts it. */
export interface Command {
  readonly words: readonly [string, ...string[]];
  readonly env: Readonly<Record<string, string>>;
}

export interface Launched {
  /** Undefined: in a container of its own. It is not seen from here, or under another number. */
  readonly pid: number | undefined;
  /** Its exit status; null if it was killed, or nobody knows. */
  readonly ended: Promise<number | null>;
  /** Of one that did not become what it was started for. */
  kill(): Promise<void>;
}

/** Starts a program that outlives this process. The signal ends when nobody waits for what becomes of it any more. */
export type Launch = (command: Command, signal: AbortSignal) => Promise<Launched>;

export const launchProcess: Launch = async ({ words: [file, ...args], env }) => {
  // Never on a mount of its own, nor on one that somebody wants to unmount.
  const child = spawn(file, args, { detached: true, stdio: 'ignore', cwd: '/', env });
  const { promise: ended, resolve: end } = Promise.withResolvers<number | null>();
  child.once('error', () => end(null)).once('exit', end);
  child.unref();
  return { pid: child.pid ?? -1, ended, kill: async () => void child.kill('SIGKILL') };
};
