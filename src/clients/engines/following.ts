import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { EngineEvent } from '#wire/docker/events.ts';
import { engineFailure } from './errors.ts';

export interface FollowingParts {
  /** The engine's. */
  readonly name: string;
  readonly client: Pick<DockerClient, 'events'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly changed: () => void;
  /** It is there, perhaps not the same as before. */
  readonly opened?: (signal: AbortSignal) => void;
}

interface Ended {
  readonly why: string;
  readonly action?: string;
}

/** One try costs next to nothing, and whoever waits for the engine waits for us too. */
const firstPauseMs = 100;
const longestPauseMs = 2_000;

/**
 * After these a list of containers may not be what it was. Docker says `destroy`, Podman `remove`; and Podman writes down
 * that a container ended after it said so, but before it says `cleanup`.
 */
const telling = new Set(['create', 'start', 'die', 'died', 'stop', 'cleanup', 'rename', 'destroy', 'remove']);

/** Follows the engine's events until disposed of, through its restarts. */
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
  let wasTold = false;
  let pause = firstPauseMs;
  while (!signal.aborted) {
    const since = clock.elapsed();
    const why = await once(parts, signal, () => {
      if (isLost) log.info('a container engine is there again', { engine: name });
      isLost = false;
      wasTold = true;
      parts.opened?.(signal);
      changed();
    });
    if (signal.aborted) return;
    if (!isLost) log.warn('a container engine was lost', { engine: name, ...why });
    isLost = true;
    // Of an engine that is not there at the beginning too: whoever listens finds out how it is.
    if (!wasTold) changed();
    wasTold = true;
    // One that hangs up as soon as it answered is not to be asked all the time.
    pause = clock.elapsed() - since > longestPauseMs ? firstPauseMs : Math.min(pause * 2, longestPauseMs);
    await clock.sleep(pause, signal).catch(() => undefined);
  }
}

/** Until the stream ends, or was not to be had; gives why, and what to do. */
async function once(parts: FollowingParts, signal: AbortSignal, opened: () => void): Promise<Ended> {
  const { name, client, clock, changed } = parts;
  try {
    // From a moment ago: nothing happens between the list that is now taken and the first event.
    const events = await client.events({ types: ['container'], since: clock.now() }, signal);
    opened();
    for await (const event of events) if (isTelling(event)) changed();
    return { why: 'it ended' };
  } catch (thrown) {
    const { message, action } = engineFailure(thrown, name);
    return { why: message, action };
  }
}

/** Not what is done in a container (`exec_start: …`), nor how it feels (`health_status: …`). */
const isTelling = ({ type, action }: EngineEvent): boolean => type === 'container' && telling.has(action);
