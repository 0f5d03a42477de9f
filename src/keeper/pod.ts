import { closeSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import type { Clock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptors.ts';
import { endProcess } from '#base/linux/end-process.ts';
import type { Log } from '#base/log.ts';
import { ownFolder } from './listening-socket.ts';
import { hasChildren } from './system-calls.ts';

/**
 * A keeper that somebody else starts, as the first process of a container: when it ends, everything in the container does, and it is started
 * again at once. So it ends only when it is told to, and has nothing; one that has handed over begins anew, as one that waits. Its data path
 * goes on serving until the other keeper has replaced it, and before that the container must not end, whoever told it to.
 */
export interface PodKeeper {
  /** When no keeper of another pod is to be left alone. */
  waitForTurn(signal: AbortSignal): Promise<void>;
  /** It is in charge: from now on this pod takes nothing from another one that lives. */
  tookCharge(): void;
  /** From now on it ends as soon as it has nothing. */
  endWhenIdle(mounts: () => number): void;
  /** In place of its end, after a pause. */
  restart(ms: number): Promise<never>;
}

interface PodOptions {
  /** Its pod's: told apart from the next one's. Empty: nobody knows. */
  readonly pod: string;
  readonly folder: string;
  readonly path: string;
  readonly clock: Clock;
  readonly log: Log;
}

const lookMs = 200;
/** Two are there at a time. */
const mostPods = 8;
/** In the environment of one that begins anew and was told to end before: nobody says so twice. */
const terminatingVariable = 'STOWAGE_KEEPER_TOLD';

export function createPodKeeper({ pod, folder, path, clock, log }: PodOptions): PodKeeper {
  let isTerminating = process.env[terminatingVariable] !== undefined;
  let mountsNow: (() => number) | undefined;
  // The first process of a container hears of no signal that it has no handler for.
  process.on('SIGTERM', () => {
    if (!isTerminating) log.info('told to end', { mounts: mountsNow?.() ?? 0 });
    isTerminating = true;
    endIfIdle();
  });

  function endIfIdle(): void {
    if (!isTerminating) return;
    // One that waits has started nothing: what lives is a data path from before, which serves somebody else's mounts.
    if (mountsNow === undefined ? !hasChildren() : mountsNow() === 0) endProcess(0);
    clock.after(lookMs, endIfIdle);
  }
  endIfIdle();

  const podsFile = join(folder, 'pods');
  function pods(): readonly string[] {
    try {
      return readFileSync(podsFile, 'utf8').split('\n').filter(Boolean);
    } catch {
      return [];
    }
  }

  return {
    waitForTurn: async (signal) => {
      // One that was started again: whoever took over from it, or had done so before, is not to lose it to an older one.
      if (!isTerminating && !pods().includes(pod)) return;
      // One that was told to end begins nothing more.
      for (let isSaid = false; isTerminating || isListening(path); isSaid = true) {
        if (!isSaid)
          log.info(
            `the keeper of another pod is in charge; this one waits for ${isTerminating ? 'it to replace the data path' : 'its end'}`,
          );
        await clock.sleep(lookMs, signal);
      }
    },
    tookCharge: () => {
      if (pod === '' || pods().includes(pod)) return;
      writeFileSync(podsFile, `${[...pods(), pod].slice(-mostPods).join('\n')}\n`, { mode: 0o600 });
    },
    endWhenIdle: (mounts) => {
      mountsNow = mounts;
    },
    restart: async (ms) => {
      if (isTerminating && !hasChildren()) endProcess(0);
      const { promise, resolve } = Promise.withResolvers<void>();
      clock.after(ms, resolve);
      await promise;
      // Nothing of what it held goes along: every descriptor is closed.
      const words = [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
      process.execve?.(process.execPath, words, {
        ...process.env,
        ...(isTerminating ? { [terminatingVariable]: 'yes' } : {}),
      });
      return endProcess(1);
    },
  };
}

/** An agent makes the folder: who has no rights cannot. Told to end meanwhile, it does. */
export async function waitForFolder(folder: string, clock: Clock, signal: AbortSignal): Promise<void> {
  const end = (): void => endProcess(0);
  process.on('SIGTERM', end);
  for (let isSaid = false; ; isSaid = true)
    try {
      ownFolder(folder);
      process.off('SIGTERM', end);
      return;
    } catch (cause) {
      if (!isSaid) process.stderr.write(`stowage keeper: waits for an agent to make ${folder} (${String(cause)})\n`);
      await clock.sleep(lookMs, signal);
    }
}

function isListening(path: string): boolean {
  try {
    closeSync(connectTo(path));
    return true;
  } catch (cause) {
    return !['ENOENT', 'ECONNREFUSED'].includes((cause as NodeJS.ErrnoException).code ?? '');
  }
}
