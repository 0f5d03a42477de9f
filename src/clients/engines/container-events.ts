import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { EngineEvent } from '#wire/docker/events.ts';
import { engineFailure } from './engine-errors.ts';

export interface FollowingParts {
  /** The engine's name. */
  readonly name: string;
  readonly client: Pick<DockerClient, 'events'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly changed: () => void;
  /** Called when the engine is reachable; it may be another one than before. */
  readonly opened?: (signal: AbortSignal) => void;
}

interface StreamEnd {
  readonly why: string;
  readonly action?: string;
}

/** A retry costs almost nothing, and callers that wait for the engine also wait for this retry. */
const firstPauseMs = 100;
const longestPauseMs = 2_000;

/**
 * Events that can change the list of containers. Docker sends `destroy`, Podman `remove`. Podman records the end of a container after it
 * sends `died`, but before it sends `cleanup`.
 */
const telling = new Set(['create', 'start', 'die', 'died', 'stop', 'cleanup', 'rename', 'destroy', 'remove']);

/** Follows the engine's events until disposed of, and reconnects when the engine restarts. */
export function followContainers(parts: FollowingParts): AsyncDisposable {
  const end = new AbortController();
  const over = follow(parts, end.signal);
  return {
    [Symbol.asyncDispose]: async () => {
      end.abort();
      await over;
    },
  };
}

async function follow(parts: FollowingParts, signal: AbortSignal): Promise<void> {
  const { name, clock, log, changed } = parts;
  let isLost = false;
  let hasNotified = false;
  let pause = firstPauseMs;
  while (!signal.aborted) {
    const since = clock.elapsed();
    const why = await once(parts, signal, () => {
      if (isLost) log.info('a container engine answers again', { engine: name });
      isLost = false;
      hasNotified = true;
      parts.opened?.(signal);
      changed();
    });
    if (signal.aborted) return;
    if (!isLost) log.warn('lost the connection to a container engine', { engine: name, ...why });
    isLost = true;
    // Also if the engine is not reachable at the start: the listener then finds that out.
    if (!hasNotified) changed();
    hasNotified = true;
    // Back off even if it answered, in case it always hangs up at once.
    pause = clock.elapsed() - since > longestPauseMs ? firstPauseMs : Math.min(pause * 2, longestPauseMs);
    await clock.sleep(pause, signal).catch(() => undefined);
  }
}

/** Runs until the event stream ends or fails to open. Returns why, and what to do. */
async function once(parts: FollowingParts, signal: AbortSignal, opened: () => void): Promise<StreamEnd> {
  const { name, client, clock, changed } = parts;
  try {
    // Ask for events from a moment ago, so that none is missed between the list that is now taken and the first event.
    const events = await client.events({ types: ['container'], since: clock.now() }, signal);
    opened();
    for await (const event of events) if (isTelling(event)) changed();
    return { why: 'it ended' };
  } catch (thrown) {
    const { message, action } = engineFailure(thrown, name);
    return { why: message, action };
  }
}

/** Ignores what happens inside a container (`exec_start: …`) and its health (`health_status: …`). */
const isTelling = ({ type, action }: EngineEvent): boolean => type === 'container' && telling.has(action);
