import { onAbort } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { createLines } from '#base/lines.ts';
import { garbledError, isTransient, KubeError, mustRelist, parseBody } from './errors.ts';
import { callOf, failureOf, type KubeHttp } from './http.ts';
import { pathOf, type Resource } from './resources.ts';
import { statusError } from './status.ts';
import type { KubeObject } from './types.ts';

export interface WatchQuery {
  readonly namespace?: string | undefined;
  readonly labelSelector?: string | undefined;
  readonly fieldSelector?: string | undefined;
  /** The version of the list or of the last change. */
  readonly resourceVersion: string;
}

export type WatchEvent<T> =
  | { readonly kind: 'added' | 'modified' | 'deleted'; readonly object: T; readonly resourceVersion: string }
  /** A bookmark is not a change: the API server has sent all changes up to this version. */
  | { readonly kind: 'bookmark'; readonly resourceVersion: string };

interface WatchContext {
  readonly http: KubeHttp;
  readonly clock: Clock;
  readonly random: () => number;
}

const headerTimeoutMs = 30_000;
/**
 * Bookmarks arrive every minute. A connection that is silent for longer may be dead at the other end, and a new one is
 * cheap.
 */
const maxSilenceMs = 90_000;
/** The API server ends a watch after this time, with jitter so that not all end together. */
const minWatchSeconds = 300;
const maxLineBytes = 16 << 20;
const firstBackOffMs = 200;
const maxBackOffMs = 10_000;
/** A watch that was open for this long was healthy. */
const healthyWatchMs = 30_000;

/**
 * Watches from the last version that was seen. Reconnects when the API server closes the connection, which it does regularly,
 * when the connection breaks or falls silent, and when the API server is unreachable. Returns when a new list is needed. Throws
 * errors that waiting does not fix.
 */
export async function* watchWithRetries<T extends KubeObject>(
  context: WatchContext,
  resource: Resource<T>,
  query: WatchQuery,
  signal: AbortSignal,
): AsyncGenerator<WatchEvent<T>, void, undefined> {
  const { clock, random } = context;
  let { resourceVersion } = query;
  /** The number of attempts in a row without an event. */
  let fruitlessAttempts = 0;
  for (;;) {
    const startedAt = clock.elapsed();
    let retryAfterMs = 0;
    let isBroken = false;
    try {
      for await (const change of watchOnce(context, resource, { ...query, resourceVersion }, signal)) {
        if (change.resourceVersion !== resourceVersion) fruitlessAttempts = 0;
        ({ resourceVersion } = change);
        yield change;
      }
    } catch (thrown) {
      if (mustRelist(thrown)) return;
      if (!(thrown instanceof KubeError) || signal.aborted || !isTransient(thrown)) throw thrown;
      isBroken = thrown.failure !== 'deadline';
      retryAfterMs = thrown.retryAfterMs;
    }
    const isSettled = clock.elapsed() - startedAt >= healthyWatchMs;
    if (isSettled) fruitlessAttempts = 0;
    if (isBroken || !isSettled) fruitlessAttempts++;
    const backOffMs =
      fruitlessAttempts <= 1 && !isBroken
        ? 0
        : Math.min(maxBackOffMs, firstBackOffMs * 2 ** Math.min(fruitlessAttempts - 1, 20));
    const waitMs = Math.max(retryAfterMs, backOffMs * (0.5 + random() / 2));
    if (waitMs > 0) await waitBeforeRetry(clock, waitMs, resource, signal);
  }
}

async function waitBeforeRetry(
  clock: Clock,
  ms: number,
  resource: Resource<KubeObject>,
  signal: AbortSignal,
): Promise<void> {
  try {
    await clock.sleep(ms, signal);
  } catch (thrown) {
    throw failureOf(`WATCH ${resource.plural}`, thrown, signal);
  }
}

/** Watches over one connection until it ends. */
async function* watchOnce<T extends KubeObject>(
  { http, clock, random }: WatchContext,
  resource: Resource<T>,
  { namespace, labelSelector, fieldSelector, resourceVersion }: WatchQuery,
  signal: AbortSignal,
): AsyncGenerator<WatchEvent<T>, void, undefined> {
  const timeoutSeconds = String(Math.round(minWatchSeconds * (1 + random())));
  const out = {
    method: 'GET',
    path: pathOf(resource, { namespace }),
    query: {
      watch: 'true',
      allowWatchBookmarks: 'true',
      resourceVersion,
      timeoutSeconds,
      labelSelector,
      fieldSelector,
    },
    timeoutMs: headerTimeoutMs,
    maxBytes: maxLineBytes,
  } as const;
  const call = callOf(out).replace('GET', 'WATCH');
  const connectionEnd = new AbortController();
  using idleTimer = startIdleTimer(clock, connectionEnd, signal);
  try {
    const lines = createLines(maxLineBytes, (why) => garbledError(call, why));
    for await (const chunk of (await http.openStream(out, connectionEnd.signal)) as AsyncIterable<Uint8Array>) {
      idleTimer.reset();
      for (const line of lines.addChunk(chunk)) yield parseEvent<T>(parseBody(line, call), call);
    }
  } catch (thrown) {
    throw failureOf(call, thrown, connectionEnd.signal);
  }
}

interface IdleTimer extends Disposable {
  reset(): void;
}

/** Aborts the controller when the signal is aborted, or when nothing was received for `maxSilenceMs`. */
function startIdleTimer(clock: Clock, controller: AbortController, signal: AbortSignal): IdleTimer {
  let lastChunkAt = clock.elapsed();
  const checkSilence = (): void => {
    const leftMs = lastChunkAt + maxSilenceMs - clock.elapsed();
    if (leftMs <= 0) controller.abort(new DeadlineExceeded(maxSilenceMs));
    // Do not restart the timer for every chunk: in a burst there are thousands.
    else timer = clock.after(leftMs, checkSilence);
  };
  let timer = clock.after(maxSilenceMs, checkSilence);
  const parent = onAbort(signal, () => controller.abort(signal.reason));
  return {
    reset: () => {
      lastChunkAt = clock.elapsed();
    },
    [Symbol.dispose]: () => {
      timer[Symbol.dispose]();
      parent[Symbol.dispose]();
    },
  };
}

const eventKinds: Readonly<Record<string, 'added' | 'modified' | 'deleted'>> = {
  ADDED: 'added',
  MODIFIED: 'modified',
  DELETED: 'deleted',
};

function parseEvent<T extends KubeObject>(event: unknown, call: string): WatchEvent<T> {
  const { type, object } = (event ?? {}) as { readonly type?: string; readonly object?: T };
  // The API server reports errors in the stream once it has sent the response header.
  if (type === 'ERROR') throw statusError(call, { status: 0, body: JSON.stringify(object ?? {}) });
  const resourceVersion = object?.metadata?.resourceVersion;
  if (object === undefined || type === undefined || resourceVersion === undefined)
    throw garbledError(call, 'a line is not a change of an object');
  if (type === 'BOOKMARK') return { kind: 'bookmark', resourceVersion };
  const kind = eventKinds[type];
  if (kind === undefined) throw garbledError(call, 'a line is a change of an unknown kind');
  return { kind, object, resourceVersion };
}
