import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { EngineEvent } from '#wire/docker/events.ts';
import { engineFailure } from './engine-errors.ts';

export interface ContainerEventsParts {
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
const listChangingActions = new Set([
  'create',
  'start',
  'die',
  'died',
  'stop',
  'cleanup',
  'rename',
  'destroy',
  'remove',
]);

/** Follows the engine's events until disposed of, and reconnects when the engine restarts. */
export function followContainers(parts: ContainerEventsParts): AsyncDisposable {
  const stopping = new AbortController();
  const following = follow(parts, stopping.signal);
  return {
    [Symbol.asyncDispose]: async () => {
      stopping.abort();
      await following;
    },
  };
}

async function follow(parts: ContainerEventsParts, signal: AbortSignal): Promise<void> {
  const { name, clock, log, changed } = parts;
  let isLost = false;
  let hasNotified = false;
  let pauseMs = firstPauseMs;
  while (!signal.aborted) {
    const startedAt = clock.elapsed();
    const streamEnd = await readEvents(parts, signal, () => {
      if (isLost) log.info('a container engine answers again', { engine: name });
      isLost = false;
      hasNotified = true;
      parts.opened?.(signal);
      changed();
    });
    if (signal.aborted) return;
    if (!isLost) log.warn('lost the connection to a container engine', { engine: name, ...streamEnd });
    isLost = true;
    // Notify also if the engine is unreachable at the start: the listener then learns that.
    if (!hasNotified) changed();
    hasNotified = true;
    // Back off even if it answered, in case it always hangs up at once.
    pauseMs = clock.elapsed() - startedAt > longestPauseMs ? firstPauseMs : Math.min(pauseMs * 2, longestPauseMs);
    await clock.sleep(pauseMs, signal).catch(() => undefined);
  }
}

/** Runs until the event stream ends or fails to open. Returns why, and what to do. */
async function readEvents(parts: ContainerEventsParts, signal: AbortSignal, opened: () => void): Promise<StreamEnd> {
  const { name, client, clock, changed } = parts;
  try {
    // Request events since now, so that no event between the caller's listing and the start of the stream is missed.
    const events = await client.events({ types: ['container'], since: clock.now() }, signal);
    opened();
    for await (const event of events) if (isListChange(event)) changed();
    return { why: 'it ended' };
  } catch (thrown) {
    const { message, action } = engineFailure(thrown, name);
    return { why: message, action };
  }
}

/** Ignores what happens inside a container (`exec_start: …`) and its health (`health_status: …`). */
const isListChange = ({ type, action }: EngineEvent): boolean =>
  type === 'container' && listChangingActions.has(action);
