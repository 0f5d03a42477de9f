import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Core } from '#core/core.ts';
import type { Event } from '#core/events.ts';
import type { Volume } from '#core/model.ts';
import type { OperationView } from '#core/operations.ts';
import { enforcesSizes } from '#core/store-view.ts';
import { commonHeaders } from './headers.ts';
import { operationJson, volumeJson } from './json.ts';
import { maySee, type Principal } from './principal.ts';
import { redactedUri } from './redaction.ts';

export interface StreamOptions {
  readonly principal: Principal;
  readonly requestId: string;
  /** Aborted when the server stops; ends the stream. */
  readonly signal: AbortSignal;
  /** Called before every write: a token can expire or be revoked while its reader is connected. */
  readonly stillAllowed: () => boolean;
  readonly heartbeatMs?: number;
  /** A reader that reads nothing for this long is disconnected. It reconnects and resumes, or starts again after a `reset`. */
  readonly stuckMs?: number;
}

function dataOf(core: Core, event: Event, principal: Principal): unknown {
  const data = event.data as {
    volume?: Volume | string;
    operation?: OperationView['operation'];
    uri?: string;
    progress?: OperationView['progress'];
  };
  if (data.operation !== undefined)
    return operationJson({ operation: data.operation, progress: data.progress }, undefined, principal);
  if (typeof data.volume === 'object') {
    const { store } = data.volume;
    const view = core.stores.list().find((one) => one.config.name === store);
    return volumeJson(data.volume, view !== undefined && enforcesSizes(view));
  }
  return data.uri === undefined ? data : { ...data, uri: redactedUri(principal, data.uri) };
}

function eventText(core: Core, event: Event, principal: Principal): string {
  const { type, subject } = event;
  const body = { type, at: new Date(event.at).toISOString(), subject, data: dataOf(core, event, principal) };
  return `id: ${core.events.epoch}-${event.seq}\nevent: ${type}\ndata: ${JSON.stringify(body)}\n\n`;
}

/** Parses Last-Event-ID, `<epoch>-<seq>`. Undefined if it is malformed or from before a server restart. */
function positionOf(core: Core, id: string): number | undefined {
  const [, epoch, seq] = /^(.*)-([0-9]{1,15})$/.exec(id) ?? [];
  return epoch === core.events.epoch ? Number(seq) : undefined;
}

interface PumpOptions extends Pick<StreamOptions, 'principal' | 'stillAllowed'> {
  readonly finish: () => void;
}

/**
 * Writes events from the ring buffer as fast as the reader takes them. Nothing is queued for a slow reader: if it falls behind the end of the
 * ring, it gets a `reset`.
 */
function createPump(core: Core, response: ServerResponse, from: number, options: PumpOptions) {
  const { events } = core;
  const { principal, stillAllowed, finish } = options;
  let position = from;
  let waitingSince: number | undefined;
  const writeText = (text: string): void => {
    if (!response.write(text)) waitingSince ??= performance.now();
  };
  const writeMarker = (type: 'hello' | 'reset'): void => {
    position = events.lastSeq;
    writeText(`id: ${events.epoch}-${position}\nevent: ${type}\ndata: {}\n\n`);
  };

  function pump(): void {
    while (waitingSince === undefined) {
      const missed = events.eventsAfter(position);
      if (missed?.length === 0) return;
      if (!stillAllowed()) {
        finish();
        return;
      }
      if (missed === undefined) {
        writeMarker('reset');
        continue;
      }
      for (const event of missed) {
        position = event.seq;
        if (maySee(principal, event.store)) writeText(eventText(core, event, principal));
        if (waitingSince !== undefined) break;
      }
    }
  }

  return {
    pump,
    mark: writeMarker,
    resume: () => {
      waitingSince = undefined;
      pump();
    },
    waitingMs: () => (waitingSince === undefined ? 0 : performance.now() - waitingSince),
    // The heartbeat carries the position, so that a reader with few visible events does not fall out of the ring.
    sendHeartbeat: () => {
      if (!stillAllowed()) finish();
      else if (waitingSince === undefined) writeText(`: still here\nid: ${events.epoch}-${position}\n\n`);
    },
  };
}

/** Serves one reader until it disconnects, loses its right to read, or the server stops. */
export function streamEvents(
  core: Core,
  request: IncomingMessage,
  response: ServerResponse,
  options: StreamOptions,
): void {
  const { requestId, signal, heartbeatMs = 15_000, stuckMs = 60_000 } = options;
  response.writeHead(200, {
    ...commonHeaders(requestId),
    'content-type': 'text/event-stream',
    'x-accel-buffering': 'no',
  });
  response.write('retry: 1000\n\n');
  const open = new DisposableStack();
  const finish = (): void => {
    open.dispose();
    // A stuck reader will never read the buffered data.
    if (pump.waitingMs() > 0) response.destroy();
    else response.end();
  };
  const last = request.headers['last-event-id'];
  const resumed = typeof last === 'string' ? positionOf(core, last) : undefined;
  const pump = createPump(core, response, resumed ?? core.events.lastSeq, { ...options, finish });
  open.use(core.events.subscribe(pump.pump));
  const beat = setInterval(() => {
    if (pump.waitingMs() > stuckMs) response.destroy();
    else pump.sendHeartbeat();
  }, heartbeatMs);
  open.adopt(beat.unref(), clearInterval);
  signal.addEventListener('abort', finish, { once: true });
  open.defer(() => signal.removeEventListener('abort', finish));
  response.on('drain', pump.resume);
  response.on('close', () => open.dispose());
  // A new reader gets a position to resume from before the first event.
  if (resumed === undefined) pump.mark(last === undefined ? 'hello' : 'reset');
  pump.pump();
  if (signal.aborted) finish();
}
