import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Scope } from '#base/log.ts';
import type { Core } from '#core/core.ts';
import { errorCodes } from '#core/error-codes.ts';
import type { Operation, Room } from '#core/model.ts';
import type { StoreView } from '#core/store-view.ts';
import type { DataPathJson } from './schemas.ts';

export interface Metrics {
  readonly contentType: string;
  /** Metrics of the visible stores, and of the whole process. */
  text(visible: (store: string | undefined) => boolean, scope: Scope): Promise<string>;
  request(method: string, route: string, status: number, seconds: number): void;
  csiCall(call: CsiCall): void;
}

/** `code` is the gRPC status code. */
interface CsiCall {
  readonly driver: string;
  readonly method: string;
  readonly code: number;
  readonly seconds: number;
}

export interface MetricsOptions {
  readonly core: Core;
  readonly version: string;
  readonly dataPaths: (signal: AbortSignal) => Promise<readonly DataPathJson[]>;
}

/** Sampling interval of the event loop lag. With the library's default, an idle server would wake up 100 times a second. */
const loopEveryMs = 100;
const buckets = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60];

export function createMetrics({ core, version, dataPaths }: MetricsOptions): Metrics {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: loopEveryMs });
  new Gauge({
    name: 'stowage_info',
    help: 'Always 1; the version as a label',
    labelNames: ['version'],
    registers,
    collect() {
      this.set({ version }, 1);
    },
  });
  new Gauge({
    name: 'stowage_operations_running',
    help: 'Operations in progress',
    registers,
    collect() {
      this.set(core.operations.running);
    },
  });
  countOperations(core, registry);
  const requests = new Counter({
    name: 'stowage_http_requests_total',
    help: 'REST requests',
    labelNames: ['method', 'route', 'status'],
    registers,
  });
  const seconds = new Histogram({
    name: 'stowage_http_request_seconds',
    help: 'Time to answer a REST request',
    labelNames: ['method', 'route'],
    buckets,
    registers,
  });
  return {
    contentType: registry.contentType,
    text: async (visible, scope) => {
      const seen = await Promise.all([
        storeGauges(core, visible, scope),
        mountGauges(core, visible, scope),
        // Data paths are named after the networks of all stores, so they are only for callers that see all stores.
        ...(visible(undefined) ? [dataPathGauges(dataPaths, scope)] : []),
      ]);
      return Registry.merge([registry, ...seen]).metrics();
    },
    request: (method, route, status, took) => {
      requests.inc({ method, route, status });
      seconds.observe({ method, route }, took);
    },
    csiCall: countCsiCalls(registry),
  };
}

/** A registry of its own for each request, since each caller sees other stores. */
async function storeGauges(
  core: Core,
  visible: (store: string | undefined) => boolean,
  scope: Scope,
): Promise<Registry> {
  const registry = new Registry();
  const views = core.stores.list().filter((view) => visible(view.config.name));
  const totals = (view: StoreView) => core.catalogue.totals(view.config.name);
  const names = views.map((view) => view.config.name);
  const [silent, rooms] = await Promise.all([
    core.liveness.findSilent(names, scope),
    core.liveness.rooms(names, scope),
  ]);
  const isUsable = ({ store, config }: StoreView): boolean => store !== undefined && !silent.has(config.name);
  const room = ({ config }: StoreView, of: keyof Room): number | undefined => {
    const known = rooms.get(config.name)?.[of];
    return known === undefined ? undefined : Number(known);
  };
  const perStore: readonly (readonly [name: string, help: string, value: (view: StoreView) => number | undefined])[] = [
    ['stowage_volumes', 'Volumes in a store', (view) => totals(view).volumes],
    ['stowage_volume_bytes', 'Sum of the requested sizes in a store', (view) => Number(totals(view).bytes)],
    ['stowage_store_open', '1: the store can be used, 0: it cannot', (view) => (isUsable(view) ? 1 : 0)],
    [
      'stowage_store_free_bytes',
      'Free space of the file system that a store is on. Absent: not known at the moment',
      (view) => room(view, 'freeBytes'),
    ],
    ['stowage_store_size_bytes', 'Size of the file system that a store is on', (view) => room(view, 'totalBytes')],
  ];
  for (const [name, help, value] of perStore) {
    const gauge = new Gauge({ name, help, labelNames: ['store'], registers: [registry] });
    for (const view of views) {
      const figure = value(view);
      if (figure !== undefined) gauge.set({ store: view.config.name }, figure);
    }
  }
  return registry;
}

async function mountGauges(
  core: Core,
  visible: (store: string | undefined) => boolean,
  scope: Scope,
): Promise<Registry> {
  const registry = new Registry();
  const mounts = new Gauge({
    name: 'stowage_mounts',
    help: 'Mounts of this machine. condition: ok, or what is wrong with them',
    labelNames: ['store', 'condition'],
    registers: [registry],
  });
  for (const { config } of core.stores.list())
    if (visible(config.name)) mounts.set({ store: config.name, condition: 'ok' }, 0);
  for (const { volumeId, health } of await core.mountHealth(scope)) {
    const store = core.catalogue.findRecorded(volumeId)?.store;
    if (store !== undefined && visible(store)) mounts.inc({ store, condition: health.state });
  }
  return registry;
}

async function dataPathGauges(dataPaths: MetricsOptions['dataPaths'], { signal }: Scope): Promise<Registry> {
  const registry = new Registry();
  const labelNames = ['name'] as const;
  const registers = [registry];
  const state = new Gauge({
    name: 'stowage_data_path_state',
    help: 'Always 1. By `name` (host, or its network) and `state`: what a process does that serves mounts of network stores',
    labelNames: [...labelNames, 'state'],
    registers,
  });
  const takeovers = new Gauge({
    name: 'stowage_data_path_takeovers',
    help: 'By `name`: how often one process took over from another',
    labelNames,
    registers,
  });
  const mounts = new Gauge({
    name: 'stowage_data_path_mounts',
    help: 'By `name`: mounts that it serves',
    labelNames,
    registers,
  });
  for (const one of await dataPaths(signal)) {
    state.set({ name: one.name, state: one.state }, 1);
    takeovers.set({ name: one.name }, one.takeovers);
    mounts.set({ name: one.name }, one.mounts);
  }
  return registry;
}

/** The names of gRPC status codes. */
const codes: ReadonlyMap<number, string> = new Map([
  [0, 'ok'],
  [12, 'unimplemented'],
  ...Object.entries(errorCodes).map(([name, { grpc }]) => [grpc, name] as const),
]);

function countCsiCalls(registry: Registry): Metrics['csiCall'] {
  const registers = [registry];
  const calls = new Counter({
    name: 'stowage_csi_calls_total',
    help: 'Answered CSI calls',
    labelNames: ['driver', 'method', 'code'],
    registers,
  });
  const lasting = new Histogram({
    name: 'stowage_csi_call_seconds',
    help: 'Time to answer a CSI call',
    labelNames: ['driver', 'method'],
    buckets,
    registers,
  });
  return ({ driver, method, code, seconds }) => {
    calls.inc({ driver, method, code: codes.get(code) ?? String(code) });
    lasting.observe({ driver, method }, seconds);
  };
}

function countOperations(core: Core, registry: Registry): void {
  const registers = [registry];
  const operations = new Counter({
    name: 'stowage_operations_total',
    help: 'Operations that ended',
    labelNames: ['kind', 'state'],
    registers,
  });
  const lasting = new Histogram({
    name: 'stowage_operation_seconds',
    help: 'How long operations took',
    labelNames: ['kind'],
    buckets,
    registers,
  });
  core.events.subscribe((event) => {
    if (event.type !== 'operation.ended') return;
    const { kind, state, startedAt, endedAt } = (event.data as { operation: Operation }).operation;
    operations.inc({ kind, state });
    lasting.observe({ kind }, ((endedAt ?? startedAt) - startedAt) / 1000);
  });
}
