import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import type { Clock } from '#base/clock.ts';
import { endProcess } from '#base/linux/end-process.ts';
import type { Log } from '#base/log.ts';
import { ensurePrivateFolder } from './listening-socket.ts';
import { isListening } from './peer-terminator.ts';
import { hasChildren } from './system-calls.ts';

/**
 * A keeper that runs as the first process of a container, started by Kubernetes. When it exits, everything in the
 * container ends, and the kubelet restarts the container at once. So it exits only on request and if it holds nothing.
 * After a handover it restarts itself and waits. Its data path keeps serving until the other keeper has replaced it;
 * until then the container must not end.
 */
export interface PodKeeper {
  /** Resolves when this keeper may take over from, or start without, the keeper of another pod. */
  waitForTurn(signal: AbortSignal): Promise<void>;
  /** This keeper is in charge. From now on this pod does not take over from a live keeper of another pod again. */
  recordCharge(): void;
  /** From now on, exits on SIGTERM if no mounts are left. */
  endWhenIdle(mountCount: () => number): void;
  /** Restarts the program in place, after a pause. */
  restart(ms: number): Promise<never>;
}

interface PodOptions {
  /** The pod's UID. Empty: unknown. */
  readonly pod: string;
  readonly folder: string;
  readonly path: string;
  readonly clock: Clock;
  readonly log: Log;
}

const pollMs = 200;
/** At most two exist at a time. */
const maxPods = 8;
/** Set across a restart if SIGTERM was received before: the signal is not sent twice. */
const terminatingVariable = 'STOWAGE_KEEPER_TOLD';

export function createPodKeeper({ pod, folder, path, clock, log }: PodOptions): PodKeeper {
  let isTerminating = process.env[terminatingVariable] !== undefined;
  let mountCount: (() => number) | undefined;
  // The kernel drops signals to the first process of a container that have no handler.
  process.on('SIGTERM', () => {
    if (!isTerminating) log.info('received SIGTERM', { mounts: mountCount?.() ?? 0 });
    isTerminating = true;
    endIfIdle();
  });

  function endIfIdle(): void {
    if (!isTerminating) return;
    // A waiting keeper has started nothing: a live child is the data path from before the restart, which still serves
    // mounts of another keeper.
    if (mountCount === undefined ? !hasChildren() : mountCount() === 0) endProcess(0);
    clock.after(pollMs, endIfIdle);
  }
  endIfIdle();

  const podsFile = join(folder, 'pods');
  function readPods(): readonly string[] {
    try {
      return readFileSync(podsFile, 'utf8').split('\n').filter(Boolean);
    } catch {
      return [];
    }
  }

  return {
    waitForTurn: async (signal) => {
      // A restarted keeper of a known pod waits: it must not take over from its successor.
      if (!isTerminating && !readPods().includes(pod)) return;
      // After SIGTERM, start nothing new.
      for (let isLogged = false; isTerminating || isListening(path); isLogged = true) {
        if (!isLogged)
          log.info(
            `the keeper of another pod is in charge; this one waits for ${isTerminating ? 'it to replace the data path' : 'its end'}`,
          );
        await clock.sleep(pollMs, signal);
      }
    },
    recordCharge: () => {
      if (pod === '' || readPods().includes(pod)) return;
      writeFileSync(podsFile, `${[...readPods(), pod].slice(-maxPods).join('\n')}\n`, { mode: 0o600 });
    },
    endWhenIdle: (mounts) => {
      mountCount = mounts;
    },
    restart: async (ms) => {
      if (isTerminating && !hasChildren()) endProcess(0);
      const { promise, resolve } = Promise.withResolvers<void>();
      clock.after(ms, resolve);
      await promise;
      // All descriptors are close-on-exec, so nothing is inherited.
      const words = [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
      process.execve?.(process.execPath, words, {
        ...process.env,
        ...(isTerminating ? { [terminatingVariable]: 'yes' } : {}),
      });
      return endProcess(1);
    },
  };
}

/** Waits until an agent has created the folder, which a keeper has no rights to do. Exits on SIGTERM. */
export async function waitForFolder(folder: string, clock: Clock, signal: AbortSignal): Promise<void> {
  const end = (): void => endProcess(0);
  process.on('SIGTERM', end);
  for (let isLogged = false; ; isLogged = true)
    try {
      ensurePrivateFolder(folder);
      process.off('SIGTERM', end);
      return;
    } catch (cause) {
      if (!isLogged)
        process.stderr.write(`stowage keeper: waiting for an agent to create ${folder} (${String(cause)})\n`);
      await clock.sleep(pollMs, signal);
    }
}
