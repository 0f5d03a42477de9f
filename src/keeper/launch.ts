import { spawn } from 'node:child_process';

/** The command line and environment of a keeper, the same for every launcher. */
export interface Command {
  readonly words: readonly [string, ...string[]];
  readonly env: Readonly<Record<string, string>>;
}

/** The exit status, or the signal that killed the process; null if unknown. */
export type KeeperEnd = number | NodeJS.Signals | null;

export interface LaunchedProcess {
  /** Undefined: it runs in its own container, where it is not visible or has another pid. */
  readonly pid: number | undefined;
  readonly ended: Promise<KeeperEnd>;
  /** For a process that failed to start up. */
  kill(): Promise<void>;
}

/** Starts a program that outlives this process. The signal aborts when the caller no longer waits for the start. */
export type Launch = (command: Command, signal: AbortSignal) => Promise<LaunchedProcess>;

export const launchProcess: Launch = async ({ words: [file, ...args], env }) => {
  // cwd is /, so that the process never keeps one of its own or another mount busy.
  const child = spawn(file, args, { detached: true, stdio: 'ignore', cwd: '/', env });
  const { promise: ended, resolve: end } = Promise.withResolvers<KeeperEnd>();
  child.once('error', () => end(null)).once('exit', (status, by) => end(status ?? by));
  child.unref();
  return { pid: child.pid ?? -1, ended, kill: async () => void child.kill('SIGKILL') };
};
