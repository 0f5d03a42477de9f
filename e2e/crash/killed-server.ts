import type { ChildProcess } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { type Answer, type Stowage, startStowage } from '../stowage.ts';

/** A Stowage that is killed again and again, and started anew each time. */
export interface KilledServer {
  /** Repeats the call, with the same key, until a living server has answered it. */
  call(method: string, path: string, body: unknown, key: string): Promise<RetriedAnswer>;
  readonly kills: number;
  /** Calls that a kill interrupted. */
  readonly interrupted: number;
  /** kill -9, then a new process on the same state; with `again`, that one is killed too, so many ms after its start. */
  kill(again: number | undefined): Promise<void>;
  /** It reads its configuration again, in its own time. */
  reloadConfig(): Promise<void>;
  stop(): Promise<void>;
}

export interface RetriedAnswer extends Answer {
  /** A server that was killed had the request, and may have done all of it. */
  readonly wasRetried: boolean;
}

/** Recovery itself is interrupted: what it had begun to repair must be repairable still. */
async function killWhileStarting(options: Parameters<typeof startStowage>[0], after: number): Promise<void> {
  const onSpawn = (child: ChildProcess): void => void setTimeout(() => child.kill('SIGKILL'), after);
  const ready = await startStowage({ ...options, onSpawn }).catch((thrown: unknown) => {
    // Not by its own fault.
    if (!String(thrown).includes('SIGKILL')) throw thrown;
  });
  await ready?.ended();
}

/** Nobody was there to take the request. */
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
          // Killed under the call, or between two. A server that does not come back is reported by `up`.
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
