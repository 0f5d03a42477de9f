import type { ChildProcess } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { type Answer, type Stowage, startStowage } from '../stowage.ts';

/** A Stowage that the test kills and restarts. */
export interface KilledServer {
  /** Retries the call with the same key until a running server answers it. */
  call(method: string, path: string, body: unknown, key: string): Promise<RetriedAnswer>;
  readonly kills: number;
  /** The number of calls that a kill interrupted. */
  readonly interrupted: number;
  /**
   * Sends SIGKILL and starts a new process on the same state. With `again`, that process is killed as well, that many
   * milliseconds after its start.
   */
  kill(again: number | undefined): Promise<void>;
  /** Sends SIGHUP. The server reloads its configuration some time later. */
  reloadConfig(): Promise<void>;
  stop(): Promise<void>;
}

export interface RetriedAnswer extends Answer {
  /** A killed server may have received the request and completed any part of it. */
  readonly wasRetried: boolean;
}

/** Interrupts the recovery at a start. The next start must complete it. */
async function killWhileStarting(options: Parameters<typeof startStowage>[0], after: number): Promise<void> {
  const onSpawn = (child: ChildProcess): void => void setTimeout(() => child.kill('SIGKILL'), after);
  const ready = await startStowage({ ...options, onSpawn }).catch((thrown: unknown) => {
    // Any other failure to start is a bug.
    if (!String(thrown).includes('SIGKILL')) throw thrown;
  });
  await ready?.ended();
}

/** The connection failed, so no server can have received the request. */
const neverSent = (thrown: unknown): boolean =>
  thrown instanceof Error && 'syscall' in thrown && thrown.syscall === 'connect';

export async function startKilledServer(options: {
  readonly state: string;
  readonly config: string;
}): Promise<KilledServer> {
  let kills = 0;
  let interrupted = 0;
  let up: Promise<Stowage> = startStowage(options);
  await up;
  return {
    call: async (method, path, body, key) => {
      const headers = method === 'GET' ? {} : { 'idempotency-key': key };
      let repeated = false;
      for (let attempt = 0; attempt < 100; attempt++) {
        const server = await up;
        try {
          return { ...(await server.api(method, path, body, headers)), wasRetried: repeated };
        } catch (thrown) {
          // A kill interrupted the call, or no server was running. `up` rejects if the server doesn't come back.
          if (attempt === 0) interrupted++;
          repeated ||= !neverSent(thrown);
          await delay(10);
        }
      }
      throw new Error(`no answer to ${method} ${path} in 100 tries`);
    },
    get kills() {
      return kills;
    },
    get interrupted() {
      return interrupted;
    },
    kill: async (again) => {
      const server = await up;
      kills++;
      server.signal('SIGKILL');
      up = server.ended().then(async () => {
        if (again !== undefined) await killWhileStarting(options, again);
        return await startStowage(options);
      });
      await up;
    },
    reloadConfig: async () => (await up).signal('SIGHUP'),
    stop: async () => (await up).stop(),
  };
}
