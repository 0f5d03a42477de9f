import type { ChildProcess } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { type Answer, type Stowage, startStowage } from '../stowage.ts';

/** A Stowage that is killed again and again, and started anew each time. */
export interface Victim {
  /** Repeats the call, with the same key, until a living server has answered it. `repeated` says whether it had to. */
  call(method: string, path: string, body: unknown, key: string): Promise<Answer & { readonly repeated: boolean }>;
  readonly kills: number;
  /** Calls that a kill interrupted. */
  readonly interrupted: number;
  /** kill -9, then a new process on the same state; with `again`, that one is killed too, so many ms after its start. */
  kill(again: number | undefined): Promise<void>;
  stop(): Promise<void>;
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

export async function startVictim(options: { readonly state: string; readonly config: string }): Promise<Victim> {
  let kills = 0;
  let interrupted = 0;
  let up: Promise<Stowage> = startStowage(options);
  await up;
  return {
    call: async (method, path, body, key) => {
      const headers = method === 'GET' ? {} : { 'idempotency-key': key };
      for (let attempt = 0; attempt < 100; attempt++) {
        const server = await up;
        try {
          return { ...(await server.api(method, path, body, headers)), repeated: attempt > 0 };
        } catch {
          // Killed under the call, or between two. A server that does not come back is reported by `up`.
          if (attempt === 0) interrupted++;
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
    stop: async () => (await up).stop(),
  };
}
