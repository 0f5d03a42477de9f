import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Engine } from '#core/engine.ts';
import type { Event } from '#core/events.ts';
import type { Volume } from '#core/model.ts';
import type { OperationView } from '#core/operations.ts';
import { operationJson, volumeJson } from './json.ts';
import { maySee, type Principal } from './principal.ts';

export interface StreamOptions {
  readonly principal: Principal;
  /** Ends the stream: the server stops. */
  readonly signal: AbortSignal;
  /** Asked now and then: a token can be revoked or expire while its reader is connected. */
  readonly stillAllowed: () => boolean;
  readonly heartbeatMs?: number;
  /** A reader that takes nothing for this long is cut off; it comes back and resumes, or starts afresh. */
  readonly stuckMs?: number;
}

function dataOf(engine: Engine, event: Event): unknown {
  const data = event.data as {
    volume?: Volume | string;
    operation?: OperationView['operation'];
    progress?: OperationView['progress'];
  };
  if (data.operation !== undefined)
    return operationJson({ operation: data.operation, progress: data.progress }, undefined);
  if (typeof data.volume === 'object') {
    const { store } = data.volume;
    const view = engine.stores.list().find((one) => one.config.name === store);
    return volumeJson(data.volume, view?.store?.enforcesCapacity ?? false);
  }
  return data;
}

function written(engine: Engine, event: Event): string {
  const { type, subject } = event;
  const body = { type, at: new Date(event.at).toISOString(), subject, data: dataOf(engine, event) };
  return `id: ${engine.events.epoch}-${event.seq}\nevent: ${type}\ndata: ${JSON.stringify(body)}\n\n`;
}

/** Where a reader was: `<epoch>-<seq>`. Undefined: another life of the server, or nonsense. */
function positionOf(engine: Engine, id: string): number | undefined {
  const [, epoch, seq] = /^(.*)-([0-9]{1,15})$/.exec(id) ?? [];
  return epoch === engine.events.epoch ? Number(seq) : undefined;
}

/**
 * Writes events from the ring as fast as the reader takes them. Nothing is queued for a slow one: it falls behind in the
 * ring, and past its end it is told to start afresh.
 */
function createPump(engine: Engine, principal: Principal, response: ServerResponse, from: number) {
  const { events } = engine;
  let position = from;
  let waitingSince: number | undefined;
  const visible = (event: Event): boolean =>
    event.store === undefined ? principal.stores.length === 0 : maySee(principal, event.store);
  const say = (text: string): void => {
    if (!response.write(text)) waitingSince ??= performance.now();
  };
  const mark = (type: 'hello' | 'reset'): void => {
    position = events.last;
    say(`id: ${events.epoch}-${position}\nevent: ${type}\ndata: {}\n\n`);
  };

  function pump(): void {
    while (waitingSince === undefined) {
      const missed = events.since(position);
      if (missed === undefined) {
        mark('reset');
        continue;
      }
      if (missed.length === 0) return;
      for (const event of missed) {
        position = event.seq;
        if (visible(event)) say(written(engine, event));
        if (waitingSince !== undefined) break;
      }
    }
  }

  return {
    pump,
    mark,
    drained: () => {
      waitingSince = undefined;
      pump();
    },
    waitingMs: () => (waitingSince === undefined ? 0 : performance.now() - waitingSince),
    // With the position, so that a reader that sees little need not start afresh because of what it may not see.
    beat: () => {
      if (waitingSince === undefined) say(`: still here\nid: ${events.epoch}-${position}\n\n`);
    },
  };
}

/** Serves one reader until it goes away, loses its right to it, or the server stops. */
export function streamEvents(
  engine: Engine,
  request: IncomingMessage,
  response: ServerResponse,
  options: StreamOptions,
): void {
  const { principal, signal, stillAllowed, heartbeatMs = 15_000, stuckMs = 60_000 } = options;
  response.writeHead(200, {
    'content-type': 'text/event-stream',
    'cache-control': 'no-store',
    'x-accel-buffering': 'no',
    'x-content-type-options': 'nosniff',
  });
  response.write('retry: 1000\n\n');
  const last = request.headers['last-event-id'];
  const resumed = typeof last === 'string' ? positionOf(engine, last) : undefined;
  const pump = createPump(engine, principal, response, resumed ?? engine.events.last);
  // A first reader gets a place to come back to before anything happened.
  if (resumed === undefined) pump.mark(last === undefined ? 'hello' : 'reset');
  pump.pump();
  using stack = new DisposableStack();
  stack.use(engine.events.subscribe(pump.pump));
  const beat = stack.adopt(
    setInterval(() => {
      if (!stillAllowed()) finish();
      else if (pump.waitingMs() > stuckMs) response.destroy();
      else pump.beat();
    }, heartbeatMs),
    clearInterval,
  );
  beat.unref();
  const open = stack.move();
  const finish = (): void => {
    open.dispose();
    // What a stuck reader has not taken it will never take.
    if (pump.waitingMs() > 0) response.destroy();
    else response.end();
  };
  response.on('drain', pump.drained);
  signal.addEventListener('abort', finish, { once: true });
  response.on('close', () => {
    open.dispose();
    signal.removeEventListener('abort', finish);
  });
  if (signal.aborted) finish();
}
