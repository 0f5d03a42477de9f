import type { ChildProcess } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { type Answer, type Stowage, startStowage } from '../stowage.ts';

/** A Stowage that the test kills and restarts. */
export interface KilledServer {
  /** Retries the call with the same key until a running server answers it. */
  call(method: string, path: string, body: unknown, key: string): Promise<RetriedAnswer>;
  readonly kills: number;
  /** The number of calls that a kill interrupted. */
  readonly interruptedCalls: number;
  /**
   * Sends SIGKILL and starts a new process on the same state. With `secondKillMs`, also kills the new process, that many
   * milliseconds after its start, and starts another one.
   */
  kill(secondKillMs: number | undefined): Promise<void>;
  /** Sends SIGHUP. The server reloads its configuration some time later. */
  reloadConfig(): Promise<void>;
  stop(): Promise<void>;
}

export interface RetriedAnswer extends Answer {
  /** A killed server may have received the request and completed any part of it. */
  readonly wasRetried: boolean;
}

/** Interrupts the recovery at a start. The next start must complete it. */
async function killWhileStarting(options: Parameters<typeof startStowage>[0], afterMs: number): Promise<void> {
  const onSpawn = (child: ChildProcess): void => void setTimeout(() => child.kill('SIGKILL'), afterMs);
  const ready = await startStowage({ ...options, onSpawn }).catch((thrown: unknown) => {
    // Any other failure to start is a bug.
    if (!String(thrown).includes('SIGKILL')) throw thrown;
  });
  await ready?.ended();
}

/** The connection failed, so no server can have received the request. */
const wasNeverSent = (thrown: unknown): boolean =>
  thrown instanceof Error && 'syscall' in thrown && thrown.syscall === 'connect';

export async function startKilledServer(options: {
  readonly state: string;
  readonly config: string;
}): Promise<KilledServer> {
  let kills = 0;
  let interruptedCalls = 0;
  let current: Promise<Stowage> = startStowage(options);
  await current;
  return {
    call: async (method, path, body, key) => {
      const headers = method === 'GET' ? {} : { 'idempotency-key': key };
      let repeated = false;
      for (let attempt = 0; attempt < 100; attempt++) {
        const server = await current;
        try {
          return { ...(await server.api(method, path, body, headers)), wasRetried: repeated };
        } catch (thrown) {
          // A kill interrupted the call, or no server was running. `up` rejects if the server doesn't come back.
          if (attempt === 0) interruptedCalls++;
          repeated ||= !wasNeverSent(thrown);
          await delay(10);
        }
      }
      throw new Error(`no answer to ${method} ${path} in 100 tries`);
    },
    get kills() {
      return kills;
    },
    get interruptedCalls() {
      return interruptedCalls;
    },
    kill: async (secondKillMs) => {
      const server = await current;
      kills++;
      server.signal('SIGKILL');
      current = server.ended().then(async () => {
        if (secondKillMs !== undefined) await killWhileStarting(options, secondKillMs);
        return await startStowage(options);
      });
      await current;
    },
    reloadConfig: async () => (await current).signal('SIGHUP'),
    stop: async () => (await current).stop(),
  };
}
