import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Scope } from '#base/log.ts';
import type { Engine } from '#core/engine.ts';
import type { Operation } from '#core/model.ts';
import type { StoreView } from '#core/stores.ts';

export interface Metrics {
  readonly contentType: string;
  /** With the figures of the stores that are visible; those of the whole process are for everybody. */
  text(visible: (store: string) => boolean, scope: Scope): Promise<string>;
  request(method: string, route: string, status: number, seconds: number): void;
}

const buckets = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60];

export function createMetrics(engine: Engine, version: string): Metrics {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
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
    help: 'Operations under way',
    registers,
    collect() {
      this.set(engine.operations.running);
    },
  });
  countOperations(engine, registry);
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
    text: async (visible, scope) => Registry.merge([registry, await storeGauges(engine, visible, scope)]).metrics(),
    request: (method, route, status, took) => {
      requests.inc({ method, route, status });
      seconds.observe({ method, route }, took);
    },
  };
}

/** For one look, since who looks decides which stores are in it. */
async function storeGauges(engine: Engine, visible: (store: string) => boolean, scope: Scope): Promise<Registry> {
  const registry = new Registry();
  const views = engine.stores.list().filter((view) => visible(view.config.name));
  const totals = (view: StoreView) => engine.records.volumes.totals(view.config.name);
  const silent = await engine.answers.silent(
    views.map((view) => view.config.name),
    scope,
  );
  const isUsable = ({ store, config }: StoreView): boolean => store !== undefined && !silent.has(config.name);
  const perStore: readonly (readonly [name: string, help: string, value: (view: StoreView) => number])[] = [
    ['stowage_volumes', 'Volumes in a store', (view) => totals(view).volumes],
    ['stowage_volume_bytes', 'Sum of the sizes asked for in a store', (view) => Number(totals(view).bytes)],
    ['stowage_store_open', '1: the store can be used, 0: it cannot', (view) => (isUsable(view) ? 1 : 0)],
  ];
  for (const [name, help, value] of perStore) {
    const gauge = new Gauge({ name, help, labelNames: ['store'], registers: [registry] });
    for (const view of views) gauge.set({ store: view.config.name }, value(view));
  }
  return registry;
}

function countOperations(engine: Engine, registry: Registry): void {
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
  engine.events.subscribe((event) => {
    if (event.type !== 'operation.ended') return;
    const { kind, state, startedAt, endedAt } = (event.data as { operation: Operation }).operation;
    operations.inc({ kind, state });
    lasting.observe({ kind }, ((endedAt ?? startedAt) - startedAt) / 1000);
  });
}
