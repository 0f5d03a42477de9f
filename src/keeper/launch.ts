import { spawn } from 'node:child_process';

/** What is run: the same, whoever starts it. */
export interface Command {
  readonly words: readonly [string, ...string[]];
  readonly env: Readonly<Record<string, string>>;
}

/** An exit status, or the signal that killed the process; null if nobody knows. */
export type KeeperEnd = number | NodeJS.Signals | null;

export interface Launched {
  /** Undefined: in a container of its own. It is not seen from here, or under another number. */
  readonly pid: number | undefined;
  readonly ended: Promise<KeeperEnd>;
  /** Of one that did not become what it was started for. */
  kill(): Promise<void>;
}

/** Starts a program that outlives this process. The signal ends when nobody waits for what becomes of it any more. */
export type Launch = (command: Command, signal: AbortSignal) => Promise<Launched>;

export const launchProcess: Launch = async ({ words: [file, ...args], env }) => {
  // Never on a mount of its own, nor on one that somebody wants to unmount.
  const child = spawn(file, args, { detached: true, stdio: 'ignore', cwd: '/', env });
  const { promise: ended, resolve: end } = Promise.withResolvers<KeeperEnd>();
  child.once('error', () => end(null)).once('exit', (status, by) => end(status ?? by));
  child.unref();
  return { pid: child.pid ?? -1, ended, kill: async () => void child.kill('SIGKILL') };
};
