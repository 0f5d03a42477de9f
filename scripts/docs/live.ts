import { mkdtempDisposable } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLog } from '#app/logger.ts';
import { startUp } from '#app/up.ts';
import type { Events } from '#controllers/machinery/events.ts';
import { createControllerMetrics } from '#controllers/metrics.ts';
import { fileDriver } from '#core/csi-drivers.ts';

/** The answers of a running server, which are never outdated. */
export interface LiveAnswers {
  readonly openApi: unknown;
  readonly metrics: string;
}

const deadlineMs = 60_000;

/** Starts a server in a temporary folder, uses it until every metric has a value, and queries it. */
export async function askServer(): Promise<LiveAnswers> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-docs-'));
  const signal = AbortSignal.timeout(deadlineMs);
  const socket = join(folder.path, 'socket');
  const folders = { state: join(folder.path, 'state'), run: folder.path, config: folder.path, socket };
  const running = await startUp({
    folders,
    config: 'none',
    listen: 'none',
    log: createLog('error', process.stderr),
    signal,
  });
  try {
    await ask(socket, 'POST', '/v1/volumes', signal, { name: 'example' });
    running.metrics.csiCall({ driver: fileDriver.name, method: 'NodeStageVolume', code: 0, seconds: 0 });
    return {
      openApi: JSON.parse(await ask(socket, 'GET', '/openapi.json', signal)),
      metrics: await ask(socket, 'GET', '/metrics', signal),
    };
  } finally {
    await running.stop();
  }
}

/** The metrics of a controller. Every metric has a value. */
export async function askController(): Promise<string> {
  const metrics = createControllerMetrics('', () => true);
  metrics.countRequest({ verb: 'get', code: '200' });
  const nothing: Events = { waiting: 0, dropped: 0, report: () => undefined, run: async () => undefined };
  const events = metrics.countEvents(nothing);
  events.report({ regarding: {}, type: 'Normal', reason: 'Example', action: 'Example', note: '' });
  let timed = (_seconds: number): void => undefined;
  const counts = { done: 1, again: 0, retried: 0, terminal: 0, waiting: 0, running: 0, delayed: 0 };
  const controller = {
    name: 'example',
    add: () => undefined,
    follow: () => undefined,
    counts: () => counts,
    onDuration: (listener: (seconds: number) => void) => {
      timed = listener;
    },
    run: async () => undefined,
  };
  const caches = { claims: { size: 0, synced: true } };
  metrics.startLeading({ controllers: [controller], caches, agents: { nodes: () => [] }, events });
  timed(0);
  return await metrics.text();
}

async function ask(
  socketPath: string,
  method: string,
  path: string,
  signal: AbortSignal,
  body?: unknown,
): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const headers = body === undefined ? {} : { 'content-type': 'application/json' };
  const sent = request({ socketPath, method, path, headers, agent: false, signal }, (answer) => {
    let text = '';
    answer.setEncoding('utf8').on('data', (chunk: string) => {
      text += chunk;
    });
    answer.on('end', () =>
      answer.statusCode === 200 || answer.statusCode === 201 ? resolve(text) : reject(new Error(text)),
    );
    answer.on('error', reject);
  });
  sent.on('error', reject);
  sent.end(body === undefined ? undefined : JSON.stringify(body));
  return await promise;
}
